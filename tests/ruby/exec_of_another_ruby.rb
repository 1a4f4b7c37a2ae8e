# SPDX-License-Identifier: Apache-2.0
# The process becomes another Ruby: same pid, everything else is new. With "late" as its argument the first
# Ruby prints a stack of its own and spins for a second before that.

require_relative "oracle"
require "rbconfig"

def become(*arguments)
  exec(RbConfig.ruby, "--disable-gems", __FILE__, *arguments)
end

def first_life
  stop = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 1
  expect(caller_locations(0)); nil while Process.clock_gettime(Process::CLOCK_MONOTONIC) < stop
end

def second_life
  [2].each { expect(caller_locations(0)); nil while true }
end

case ARGV.first
when "late"
  first_life
  become("second")
when "second" then second_life
else become("second")
end
