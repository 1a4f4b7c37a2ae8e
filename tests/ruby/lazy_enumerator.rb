# SPDX-License-Identifier: Apache-2.0
# A chain of lazy enumerators: each stage is C that calls a block, and calls the next stage.

require_relative "oracle"

class Pipeline
  def numbers
    return enum_for(:numbers) unless block_given?
    yield 1
    yield 2
  end

  def run
    stages = numbers.lazy.map { |number| number * 2 }.select(&:even?).flat_map { |number| [number, number] }
    stages = stages.reject(&:odd?).take_while { |number| number < 100 }.zip([1, 2]).each_with_index
    stages.map { |pair, index| last(pair, index) }.first(2)
  end

  def last(_pair, _index)
    expect(caller_locations(0)); nil while true
  end
end

Pipeline.new.run
