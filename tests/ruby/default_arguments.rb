# SPDX-License-Identifier: Apache-2.0
# Default values of arguments, of keywords and of a block's arguments are code of the method itself.

require_relative "oracle"

def first(value = second)
  value
end

def second(key: third { |inner| inner })
  key
end

def third
  yield_with = ->(number = fourth(1)) { number }
  yield_with.call
end

def fourth(number, other = number + 1,
           another = fifth(other))
  another
end

def fifth(_, *rest, last: [1].each { expect(caller_locations(0)); nil while true }, **others)
  [rest, last, others]
end

first
