# SPDX-License-Identifier: Apache-2.0
# Plain recursion, as deep as the argument says.

require_relative "oracle"

def down(level)
  if level == 0
    expect(caller_locations(0)); nil while true
  end
  down(level - 1)
end

down(Integer(ARGV[0]))
