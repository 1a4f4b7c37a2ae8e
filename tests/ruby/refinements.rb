# SPDX-License-Identifier: Apache-2.0
# Refined methods of C and Ruby classes, with super into what they refine, and called through a symbol.

require_relative "oracle"

class Plain
  def greet
    yield
  end
end

module Refined
  refine Plain do
    def greet
      [1].each { super }
    end

    def only_here
      yield
    end
  end

  refine Array do
    def each
      only_in_array { super }
    end

    def only_in_array
      yield
    end
  end
end

using Refined

def spin
  expect(caller_locations(0)); nil while true
end

Plain.new.greet { Plain.new.only_here { [1].each { [[2]].map { |inner| inner.each { spin } } } } }
