# SPDX-License-Identifier: Apache-2.0
# Methods of single objects, of classes and modules without a name, and of what extends an object.

require_relative "oracle"

OBJECT = Object.new
def OBJECT.single
  yield
end

ANONYMOUS = [Class.new do
  def inside
    yield
  end

  def self.of_class
    yield
  end
end, Module.new do
  def extended
    yield
  end

  def self.of_module
    yield
  end
end].freeze

module Functions
  module_function

  def function
    yield
  end
end

class Nested < Class.new(Class.new { def from_parent; yield; end })
  class Deeper
    class << self
      attr_accessor :value

      def meta
        yield
      end

      class << self
        def meta_meta
          yield
        end
      end
    end
  end
end

def run(&block)
  OBJECT.single do
    ANONYMOUS[0].of_class { ANONYMOUS[0].new.inside { ANONYMOUS[1].of_module { Nested.new.from_parent(&block) } } }
  end
end

run do
  Functions.function do
    Object.new.extend(ANONYMOUS[1]).extended do
      Nested::Deeper.meta do
        Nested::Deeper.singleton_class.meta_meta { expect(caller_locations(0)); nil while true }
      end
    end
  end
end
