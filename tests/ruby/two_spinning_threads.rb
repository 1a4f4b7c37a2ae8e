# SPDX-License-Identifier: Apache-2.0
# Two threads in different methods, one more that sleeps: each has a stack of its own.

require_relative "oracle"

def first_spinner
  expect(caller_locations(0)); nil while true
end

def second_spinner
  [1].each { expect(caller_locations(0)); nil while true }
end

sleeper = Thread.new { sleep }
Thread.pass until sleeper.status == "sleep"
[Thread.new { first_spinner }, Thread.new { second_spinner }].each(&:join)
