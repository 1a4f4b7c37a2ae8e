# SPDX-License-Identifier: Apache-2.0
# The handler of a signal spins, above the code that was interrupted.

require_relative "oracle"

def handler(signal)
  [signal].each { expect(caller_locations(0)); nil while true }
end

trap("USR1") { |signal| handler(signal) }
def interrupted
  Process.kill("USR1", Process.pid)
  sleep
end
[1].each { interrupted }
