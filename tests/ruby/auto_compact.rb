# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.0.
# The collector moves objects while the program spins, those of labels and paths too.

require_relative "oracle"

GARBAGE = Array.new(2000) { |number| "garbage #{number}" * 4 }
begin
  GC.auto_compact = true
rescue NotImplementedError
  unavailable("the heap of this Ruby cannot be compacted")
end

def moving_with_a_name_that_has_memory_of_its_own(number)
  [number].each { expect(caller_locations(0)); kept = [number, "text", kept && nil] while true }
end

eval("def evaluated\n  moving_with_a_name_that_has_memory_of_its_own(1)\nend", binding, "evaluated/#{'path' * 10}", 10)
evaluated
