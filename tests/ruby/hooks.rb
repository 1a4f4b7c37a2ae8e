# SPDX-License-Identifier: Apache-2.0
# Methods that Ruby itself calls: when a class is inherited from, a module included, a method added or a
# constant missing; and conversions that syntax asks for.

require_relative "oracle"

class Parent
  def self.inherited(child)
    child.include(Mixed)
  end
end

module Mixed
  def self.included(into)
    into.class_eval { def added; end }
  end

  def self.extended(object)
    def object.single; end
  end

  def self.prepended(into)
    into.const_get(:Nowhere)
  end
end

class Object
  def self.method_added(name)
    Object.new.extend(Mixed) if name == :added
  end

  def self.const_missing(name)
    name == :Nowhere ? [*Splatted.new] : super
  end
end

class Splatted
  def to_a
    "#{self}"
  end

  def to_s
    many, = self
    many
  end

  def to_ary
    { **Hashed.new }
  end
end

class Hashed
  def to_hash
    [1].each(&Hashed.new)
  end

  def to_proc
    expect(caller_locations(0)); nil while true
  end
end

class BasicObject
  def singleton_method_added(name)
    ::Class.new { prepend ::Mixed } if name == :single
  end
end

Class.new(Parent)
