# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.0.
# Names that break naive output formats: UTF-8, operators, `;`, quotes, `<`, line breaks, singletons, refinements.

require_relative "oracle"

module Verfeinerung
  refine String do
    def überlang
      yield
    end
  end
end
using Verfeinerung

class Ghost
  def method_missing(name, *arguments, &block)
    name == :boo ? block.call : super
  end

  def respond_to_missing?(*)
    true
  end
end

class << (SINGLE = Object.new)
  def single
    yield
  end
end

class Odd
  class << self
    def klass
      yield
    end
  end

  def 日本
    yield
  end
  prepend(Module.new { def 日本; super; end })

  def [](key)
    yield key
  end

  def <=>(other)
    other.call
  end

  # Symbols hold any character, and define_method takes them; so does a def that is evaluated.
  ["a;b", %(say "hi" 'there'), "<script>alert(1)</script>", "two\nlines", "tab\tand\\backslash"].each do |odd|
    define_method(odd) { |&block| block.call }
  end
  class_eval "def evaluated\n\n yield\nend", "/virtual/<odd>;\"name\".erb", 40

  def a_name_that_is_longer_than_the_twenty_four_bytes_which_fit_into_an_object
    yield
  end
end

class Body
  "x".überlang { Ghost.new.boo { SINGLE.single { Odd.klass { Odd.new.日本 { Odd.new.evaluated {
    Odd.new.send("a;b") { Odd.new.send(%(say "hi" 'there')) { Odd.new.send("two\nlines") {
      Odd.new.send(:[], 1) { (Odd.new <=> lambda {
        anonymous = Class.new { def inside; yield; end }
        Odd.new.a_name_that_is_longer_than_the_twenty_four_bytes_which_fit_into_an_object {
          anonymous.new.inside { eval("[1].each { instance_eval { expect(caller_locations(0)); nil while true } }") }
        }
      }) }
    } } }
  } } } } } }
end
