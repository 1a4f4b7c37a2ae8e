# SPDX-License-Identifier: Apache-2.0
# C functions of extensions, which are libraries of their own, that call Ruby code: JSON, StringIO, Date.

require_relative "oracle"
begin
  require "stringio"
  require "date"
rescue LoadError => error
  unavailable(error.message)
end

class Serialized
  def to_json(*)
    StringIO.new("a line").each_line { |line| written(line) }
  end

  def written(line)
    StringIO.new.write(Text.new(line))
  end
end

class Text
  def initialize(line)
    @line = line
  end

  def to_s
    Date.new(2024, 2, 29).step(Date.new(2024, 3, 1)) { |date| compared(date) }
  end

  def compared(date)
    date + Moved.new
  end
end

class Moved < Numeric
  def to_r
    spin
  end

  def coerce(other)
    spin
  end

  def integer?
    expect(caller_locations(0)); nil while true
  end
  alias spin integer?
end

JSON.generate([Serialized.new])
