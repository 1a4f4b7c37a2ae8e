# SPDX-License-Identifier: Apache-2.0
# The handler of a TracePoint spins, in the middle of what it traces. The argument names the event.

require_relative "oracle"

class Traced
  def run(number)
    first = number
    begin
      raise "for the handler" if first == 2
    rescue RuntimeError
      first = 3
    end
    [first].each { |each| each.to_s }
    eval("class Opened\n  NUMBER = 1\nend", binding, __FILE__, 8)
  end
end

def handle(point)
  point.disable
  expect(caller_locations(0)); nil while true
end

point = TracePoint.new(ARGV[0].to_sym) do |event|
  handle(event) if event.path == __FILE__ && event.lineno.between?(7, 17)
end
traced = Traced.new
point.enable
[1, 2].each { |number| traced.run(number) }
