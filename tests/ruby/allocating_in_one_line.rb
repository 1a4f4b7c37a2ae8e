# SPDX-License-Identifier: Apache-2.0
# The line that spins makes garbage, so the collector runs all the time, in that very line. "stress" as
# argument makes it run at every allocation.

require_relative "oracle"

def allocate(number)
  [number].each { expect(caller_locations(0)); GC.stress = true if ARGV[0] == "stress"; kept = [number, "text", kept && nil] while true }
end

allocate(1)
