# SPDX-License-Identifier: Apache-2.0
# Each fiber has a VM stack of its own: the stack is that of the innermost running fiber only.

require_relative "oracle"

def inner
  expect(caller_locations(0)); nil while true
end

numbers = Enumerator.new do |yielder|
  yielder << 1
  Fiber.new { [2].each { inner } }.resume
  yielder << 2
end
outer = Fiber.new do
  numbers.next
  numbers.next
end
outer.resume
