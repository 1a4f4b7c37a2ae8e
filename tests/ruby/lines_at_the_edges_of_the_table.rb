# SPDX-License-Identifier: Apache-2.0
# One method of 20,000 lines that calls itself at places where the parts of its line table meet: first
# instructions, the 54th, and around the blocks of 512.

require_relative "oracle"

PLACES = [2, 3, 5, 9, 10, 17, 18, 26, 27, 28, 52, 53, 54, 55, 63, 64, 117, 118, 120, 255, 256, 511, 512, 513, 565, 566,
          567, 1077, 1078, 1079, 2047, 2048, 4096, 8191, 12_345, 19_998].freeze

lines = Array.new(20_000, "  x = x")
lines[0] = "def edges(place, x)"
lines[-1] = "end"
# All other lines are two instructions.
PLACES.each_with_index { |line, index| lines[line - 1] = "  edges(place + 1, x) if place == #{index}" }
lines[19_989] = "  if place == #{PLACES.length}"
lines[19_990] = "    expect(caller_locations(0)); nil while true"
lines[19_991] = "  end"
eval(lines.join("\n"), binding, "edges.rb", 1)
edges(0, nil)
