# SPDX-License-Identifier: Apache-2.0
# As many bounces between Ruby and C as the first argument says; the second names the C method.

require_relative "oracle"

def bounce(left, method)
  if left == 0
    expect(caller_locations(0)); nil while true
  end
  method == :each ? [1].each { bounce(left - 1, method) } : [1].public_send(method) { bounce(left - 1, method) }
end

bounce(Integer(ARGV[0]), ARGV[1].to_sym)
