# SPDX-License-Identifier: Apache-2.0
# As many bounces between Ruby and C as the argument says: each level is a method, Array#each and a block.

require_relative "oracle"

def bounce(left)
  if left == 0
    expect(caller_locations(0)); nil while true
  end
  [1].each { bounce(left - 1) }
end

bounce(Integer(ARGV[0]))
