# SPDX-License-Identifier: Apache-2.0
# Method names from one byte to 16,000: labels that are stored in the object, in memory of their own, and, by
# version, in objects of several sizes. Blocks put "block in " before them.

require_relative "oracle"

LENGTHS = [1, 7, 8, 13, 14, 15, 16, 22, 23, 24, 25, 31, 32, 39, 40, 55, 56, 79, 80, 127, 128, 255, 256, 319, 320,
           639, 640, 641, 1023, 1024, 4095, 4096, 16_000].freeze
NAMES = LENGTHS.map { |length| "m#{length}_".ljust(length, "abcdefghij")[0, length] }
NAMES.each_with_index do |name, index|
  eval("def #{name}\n  call_next(#{index + 1}) { yield }\nend", binding, "p" * (index + 1), 1)
end

def call_next(index, &block)
  return send(NAMES[index], &block) if index < NAMES.length
  yield
end

def a日本語の長い名前はオブジェクトに入らない
  expect(caller_locations(0)); nil while true
end

call_next(0) { a日本語の長い名前はオブジェクトに入らない }
