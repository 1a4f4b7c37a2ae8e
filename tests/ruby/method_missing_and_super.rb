# SPDX-License-Identifier: Apache-2.0
# method_missing, respond_to_missing?, prepended and included modules, and chains of super, also from a block
# and from a method that define_method made.

require_relative "oracle"

module Included
  def work(value)
    value.call
  end
end

module Prepended
  def work(value)
    [1].each { super(value) }
  end
end

class Base
  include Included

  def work(value)
    super
  end
end

class Derived < Base
  prepend Prepended
  define_method(:work) { |value| [value].each { |each| super(each) } }
end

class Asked
  def method_missing(name, *arguments)
    return super unless name == :anything
    [arguments].each { Ghost.new.respond_to?(:something) }
  end

  def respond_to_missing?(name, _private = false)
    name == :anything || super
  end
end

class Ghost
  def respond_to_missing?(*)
    SPIN.call
  end
end

SPIN = -> { expect(caller_locations(0)); nil while true }
Derived.new.work(-> { Asked.new.anything(1) })
