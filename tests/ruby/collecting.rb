# SPDX-License-Identifier: Apache-2.0
# The main thread collects garbage all the time: ARGV[0] is the method of GC. With ARGV[1] another thread
# compresses, which needs no lock: it runs meanwhile, and collects nothing.

require "zlib"
require_relative "oracle"

GC_METHOD = GC.method(ARGV.fetch(0))

def compress
  text = "some text that is compressed again and again" * 50_000
  expect(caller_locations(0))
  Zlib::Deflate.deflate(text, 9) while true
end

Thread.new { compress } if ARGV[1]
expect(caller_locations(0)); GC_METHOD.call while true
