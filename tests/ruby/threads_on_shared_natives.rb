# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.3.
# With RUBY_MN_THREADS=1 threads of Ruby run on whichever native thread is free: none has one of its own, so
# each prints its stack without an id. The main thread waits.

require_relative "oracle"

def first_spinner
  expect(caller_locations(0), 0); nil while true
end

def second_spinner
  [1].each { expect(caller_locations(0), 0); nil while true }
end

[Thread.new { first_spinner }, Thread.new { second_spinner }].each(&:join)
