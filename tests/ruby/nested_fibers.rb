# SPDX-License-Identifier: Apache-2.0
# Fibers in fibers, one that was resumed again, and one that spins in the ensure clause which another's
# exception made it run.

require_relative "oracle"
require "fiber"

def guarded
  Fiber.yield
ensure
  [1].each_with_index { |_, _| expect(caller_locations(0)); nil while true }
end

middle = Fiber.new do
  inner = Fiber.new { 1.upto(2) { guarded } }
  inner.resume
  Fiber.yield
  inner.raise("from outside")
end
Fiber.new do
  middle.resume
  Fiber.new { middle.resume }.resume
end.resume
