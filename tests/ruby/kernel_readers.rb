# SPDX-License-Identifier: Apache-2.0
# Two methods in turn that spend their time in different parts of the kernel.

require_relative "oracle"

ZEROS = File.open("/dev/zero", "rb")
RANDOM = File.open("/dev/urandom", "rb")
BUFFER = +""

def read_zeros
  400.times { ZEROS.sysread(65_536, BUFFER) }
end

def read_random
  5.times { RANDOM.sysread(65_536, BUFFER) }
end

expect(caller_locations(0))
loop do
  read_zeros
  read_random
end
