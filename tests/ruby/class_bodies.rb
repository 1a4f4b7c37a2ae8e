# SPDX-License-Identifier: Apache-2.0
# Bodies of modules, classes and singleton classes that run when the stack is taken.

require_relative "oracle"

module Outer
  class Inner
    class << self
      class Überklasse < Struct.new(:a)
        [1].each do
          module Deepest
            class << Object.new
              Module.new { module_eval { expect(caller_locations(0)); nil while true } }
            end
          end
        end
      end
    end
  end
end
