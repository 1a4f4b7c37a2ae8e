# SPDX-License-Identifier: Apache-2.0
# A TracePoint on the lines of one method: that method's instructions are replaced by tracing ones.

require_relative "oracle"

def traced
  one = 1
  two = 2
  one + two
end

def handle
  [1].each { expect(caller_locations(0)); nil while true }
end

seen = 0
point = TracePoint.new(:line) do
  seen += 1
  handle if seen == 2
end
point.enable(target: method(:traced))
traced
