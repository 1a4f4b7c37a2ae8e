# SPDX-License-Identifier: Apache-2.0
# Calls and returns all the time, keeps the garbage collector busy, and makes code that is freed again.

class Node
  def initialize(left, right)
    @left = left
    @right = right
    @text = "#{left}-#{right}"
  end
end

def grow(depth)
  depth == 0 ? Node.new(0, "x" * 40) : Node.new(grow(depth - 1), grow(depth - 1))
end

def evaluate(number)
  eval("[1, 2].map { |each| each.to_s * 3 }", nil, "evaluated", number)
end

def churn
  grow(5)
  { 1 => [2, 3].each { |number| evaluate(number) } }
end

puts Process.pid
$stdout.flush
churn while true
