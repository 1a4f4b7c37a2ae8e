# SPDX-License-Identifier: Apache-2.0
# Loops that are C functions in some versions and Ruby code in others.

require_relative "oracle"

def spin
  expect(caller_locations(0)); nil while true
end

def in_loops
  loop do
    2.times do
      1.upto(3) do
        3.downto(1) do
          1.step(9, 4) do
            (1..3).each do
              (1..9).step(2) do
                [1].each_with_index do
                  [1].map { [1].select { [1].cycle { 1.then { 1.tap { [1].each_entry { spin } } } } } }
                end
              end
            end
          end
        end
      end
    end
  end
end

for number in [1, 2]
  in_loops if number == 2
end
