# SPDX-License-Identifier: Apache-2.0
# A handler that runs when the program ends, put there by another one, after an exception ended the program.

require_relative "oracle"

def at_the_end
  [1].each { expect(caller_locations(0)); nil while true }
end

at_exit { at_exit { at_the_end } }
def failing
  raise "to end the program"
end
failing
