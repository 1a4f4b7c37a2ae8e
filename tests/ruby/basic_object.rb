# SPDX-License-Identifier: Apache-2.0
# An object that has nearly no methods: method_missing, instance_eval and operators of a BasicObject.

require_relative "oracle"

class Bare < BasicObject
  def method_missing(name, *arguments, &block)
    name == :unknown ? instance_eval { inner(&block) } : super
  end

  def inner
    !self
  end

  def !
    self == 1
  end

  def ==(_other)
    __send__(:spin)
  end

  def spin
    ::Kernel.send(:expect, ::Kernel.caller_locations(0)); nil while true
  end
end

Bare.new.unknown
