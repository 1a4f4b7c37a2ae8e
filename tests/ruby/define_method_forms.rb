# SPDX-License-Identifier: Apache-2.0
# Methods made by define_method from a block, a lambda, a proc, a symbol's proc, a method object and an
# unbound one, and names given by alias and alias_method.

require_relative "oracle"

class Forms
  define_method(:from_block) { |value| from_lambda(value) }
  define_method(:from_lambda, ->(value) { [value].each { |each| from_proc(each) } })
  define_method(:from_proc, proc { |value| from_method(value) })

  def plain(value)
    from_unbound(value)
  end
  define_method(:from_method, instance_method(:plain))

  def other(value)
    nested(value) { |each| by_alias(each) }
  end
  define_method(:from_unbound, instance_method(:other))

  define_method(:nested) { |value, &block| [value].map { |each| [each].map { |one| block.call(one) } } }

  def original(value)
    by_alias_method(value)
  end
  alias by_alias original

  def original_too(value)
    single(value)
  end
  alias_method :by_alias_method, :original_too

  def single(value)
    define_singleton_method(:made) { |each| self.class.send(:define_method, :late) { |one| last(one) }; late(each) }
    made(value)
  end

  define_method(:last) { |_| 1.times { expect(caller_locations(0)); nil while true } }
end

Forms.new.from_block(1)
