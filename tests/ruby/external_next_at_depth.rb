# SPDX-License-Identifier: Apache-2.0
# Enumerators whose blocks call `next` on other enumerators: a fiber in a fiber, eight deep. Each has a VM
# stack of its own, so only the innermost one's frames are seen.

require_relative "oracle"

def level(depth)
  Enumerator.new do |yielder|
    yielder << depth
    if depth == 0
      [1].each { expect(caller_locations(0)); nil while true }
    else
      below = level(depth - 1)
      below.next
      yielder << below.next
    end
  end
end

outermost = level(8)
outermost.peek
2.times { outermost.next }
