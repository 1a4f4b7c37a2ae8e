# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.0.
# Methods without an end, in their forms.

require_relative "oracle"

def one = two
def two() = three(1)
def three(x) = [x].each { four(_1) }
def four(x) =
  five(x) { |y| y }
def five(x) = yield(x) && (six rescue nil)
def six = begin
  seven
end
def seven = (expect(caller_locations(0)); (nil while true))
one
