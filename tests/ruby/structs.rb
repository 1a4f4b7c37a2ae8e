# SPDX-License-Identifier: Apache-2.0
# Methods in the block of a Struct, of a keyword Struct, and of a class that inherits from one.

require_relative "oracle"

Point = Struct.new(:x, :y) do
  def walk
    each { |value| yield value }
  end

  def self.origin
    [new(0, 0)].each { |point| yield point }
  end
end

Named = Struct.new(:name, keyword_init: true) do
  def to_s
    each_pair { |_, _| SPIN.call }
  end
end

class Special < Struct.new(:only)
  def initialize(only)
    super
    only.call
  end
end

SPIN = -> { expect(caller_locations(0)); nil while true }
Point.origin { |point| point.walk { Special.new(-> { "#{Named.new(name: 1)}" }) } }
