# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.0.
# Code that comes and goes: generation after generation of three methods that call one another, each run for a
# moment, then removed, collected and compacted, so that the memory of its instruction sequences is used again.
# All frames of a sample that have a number in their label must have the same one.

$stdout.sync = true
puts "ready"
number = 0
loop do
  number += 1
  eval(<<~RUBY, binding, "generation_#{number}.rb", 1 + number % 50)
    def leaf_#{number}(stop)
      x = 0
      x += 1 while Process.clock_gettime(Process::CLOCK_MONOTONIC) < stop
    end
    #{"\n" * (number % 7)}
    def middle_#{number}(stop)
      [stop].each { |s| leaf_#{number}(s) }
    end
    def root_#{number}(stop) = middle_#{number}(stop)
  RUBY
  send("root_#{number}", Process.clock_gettime(Process::CLOCK_MONOTONIC) + Float(ARGV[0] || 0.1))
  %w[leaf middle root].each { |name| Object.send(:remove_method, "#{name}_#{number}") }
  next unless (number % 5).zero?
  GC.start
  GC.compact if GC.respond_to?(:compact)
end
