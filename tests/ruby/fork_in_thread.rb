# SPDX-License-Identifier: Apache-2.0
# A thread that is not the main one forks: in the child it is the only thread, and its main one.

require_relative "oracle"

def in_child
  expect(caller_locations(0)); nil while true
end

sleeper = Thread.new { sleep }
Thread.pass until sleeper.status == "sleep"
Thread.new { [1].each { Process.wait(fork { in_child }) } }.join
