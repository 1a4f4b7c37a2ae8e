# SPDX-License-Identifier: Apache-2.0
# So many threads, each asleep under so many Ruby frames; says "ready" once all are.

count, depth = ARGV.map(&:to_i)

def down(levels) = levels.zero? ? sleep : down(levels - 1)

threads = Array.new(count - 1) { Thread.new { down(depth) } }
Thread.pass until threads.all? { |thread| thread.status == "sleep" }
puts "ready"
$stdout.flush
down(depth)
