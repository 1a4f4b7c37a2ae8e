# SPDX-License-Identifier: Apache-2.0
# Methods and blocks that are one line, several on one line, and lines that hold a whole class.

require_relative "oracle"

def one() two end
def two() three { } end; def three() yield; four end
class OneLine; def self.run() new.run end; def run() [1].each { |x| inner(x) } end; def inner(_) five end; end
def four() OneLine.run end
def five() eval("six") end
def six() -> { ->(x) { seven(x) }.call(1) }.call end
def seven(_) begin; raise "x"; rescue; eight; ensure; nil; end end
def eight() expect(caller_locations(0)); nil while true end
one
