# SPDX-License-Identifier: Apache-2.0
# Blocks, lambdas, procs, symbols as blocks, define_method, and C functions that call back into Ruby.

require_relative "oracle"

class Chain
  define_method(:start) { |count| through_yield { |value| through_lambda(value + count) } }

  def through_yield
    yield 1
  end

  def through_lambda(value)
    step = ->(inner) { through_sort(inner) }
    step.call(value)
  end

  def through_sort(value)
    step = proc { |inner| [inner, 1].sort_by { |element| through_symbol(element) } }
    step.call(value)
  end

  def through_symbol(element)
    [self].each_with_object([element]) { |chain, _| [chain].map(&:through_method_object) }
  end

  def through_method_object
    instance_exec(4) { |number| [number].each(&method(:through_hash_default)) }
  end

  def through_hash_default(key)
    Hash.new { |_, missing| last(missing) }[key]
  end

  def last(_)
    { a: 1 }.each_pair { |_, _| catch(:never) { expect(caller_locations(0)); nil while true } }
  end
end

2.times { 1.upto(3) { |number| Chain.new.send(:start, number) } }
