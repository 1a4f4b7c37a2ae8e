# SPDX-License-Identifier: Apache-2.0
# C functions that call blocks or methods in between: sorts, folds, hashes, comparisons, conversions.

require_relative "oracle"

class Value
  include Comparable
  include Enumerable
  attr_reader :rest

  def initialize(*rest)
    @rest = rest
  end

  def deeper
    step = @rest.first
    step ? send(step, Value.new(*@rest.drop(1))) : spin
  end

  def spin
    expect(caller_locations(0)); nil while true
  end

  def <=>(other)
    other.rest.equal?(rest) ? 0 : deeper
  end

  def ==(_other)
    deeper
  end

  def hash
    deeper
  end

  def coerce(_other)
    deeper
  end

  def to_s
    deeper
  end

  def to_str
    deeper
  end

  def to_ary
    deeper
  end

  def each
    yield deeper
  end

  def to_proc
    deeper
  end

  def marshal_dump
    deeper
  end

  def clamped(value); value.clamp(value, Value.new); end
  def sorted_by(value); [1, 2].sort_by { |_| value.deeper }; end
  def sorted(value); [1, 2, 3].sort { |_, _| value.deeper }; end
  def greatest(value); [Value.new, value].max; end
  def folded(value); [1, 2].inject { |_, _| value.deeper }; end
  def with_object(value); [1].each_with_object([]) { |_, _| value.deeper }; end
  def of_hash(value); { a: 1 }.each { |_, _| value.deeper }; end
  def of_hash_values(value); { a: 1 }.transform_values { |_| value.deeper }; end
  def of_default(value); Hash.new { |_, _| value.deeper }.fetch(:a) { |_| value.deeper }; end
  def as_key(value); { value => 1 }; end
  def equal_in_array(value); [1, value].include?(Object.new) || [value] == [Value.new]; end
  def coerced(value); 1 + value; end
  def interpolated(value); "#{value}"; end
  def joined(value); "a" + value; end
  def splatted(value); [[1], value].flatten; end
  def enumerated(value); value.each_slice(2).to_a; end
  def grouped(value); [1].group_by { |_| value.deeper }; end
  def substituted(value); "text".gsub(/x/) { value.deeper }; end
  def filled(value); Array.new(2) { |_| value.deeper }; end
  def as_block(value); [1].each(&value); end
  def dumped(value); Marshal.dump([value]); end
  def bisected(value); [1, 2, 3].bsearch { |_| value.deeper }; end
  def summed(value); (1..2).sum { |_| value.deeper }; end
  def scanned(value); "text".scan(/t/) { value.deeper }; end
  def counted(value); "text".each_char.with_index(1) { |_, _| value.deeper }; end
end

Value.new(
  :clamped, :sorted_by, :sorted, :greatest, :folded, :with_object, :of_hash, :of_hash_values, :of_default,
  :as_key, :equal_in_array, :coerced, :interpolated, :joined, :splatted, :enumerated, :grouped, :substituted,
  :filled, :as_block, :dumped, :bisected, :summed, :scanned, :counted,
).deeper
