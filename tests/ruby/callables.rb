# SPDX-License-Identifier: Apache-2.0
# What can be called: lambdas, procs, curried ones, compositions, method objects, symbols, and all the ways to
# call them.

require_relative "oracle"

class Caller
  def start(number)
    add = ->(first, second) { through_composition(first + second) }
    add.curry[number][2]
  end

  def through_composition(number)
    (method(:double) >> ->(value) { through_method(value) }).call(number)
  end

  def double(number)
    number * 2
  end

  def through_method(number)
    [number].each(&method(:through_unbound))
  end

  def through_unbound(number)
    self.class.instance_method(:through_bind_call).bind(self).call(number)
  end

  def through_bind_call(number)
    self.class.instance_method(:through_symbol).bind_call(self, number)
  end

  def through_symbol(_number)
    [[self]].each { |inner| inner.each(&:through_case) }
  end

  def through_case
    check = proc { |number| through_yielder(number) }
    case 7
    when check then nil
    end
  end

  def through_yielder(number)
    return yield(number) if block_given?
    through_yielder(number) { |value| public_send(:through_sends, value) }
  end

  def through_sends(number)
    __send__(:send, :through_call, proc { |value| spin(value) }, number)
  end

  def through_call(block, number)
    block.(number)
  end

  def spin(_)
    expect(caller_locations(0)); nil while true
  end
end

Caller.new.start(1)
