# SPDX-License-Identifier: Apache-2.0
# The same piece of work for each line of input, done at a given depth; the answer is how long it took.
# Argument: depth of the Ruby stack. Input: rounds. Output: nanoseconds of CPU time, and of the wall clock.

def clocks
  [Process::CLOCK_PROCESS_CPUTIME_ID, Process::CLOCK_MONOTONIC].map do |clock|
    Process.clock_gettime(clock, :nanosecond)
  end
end

def work(rounds)
  start = clocks
  sum = 0
  while rounds > 0
    sum += rounds
    rounds -= 1
  end
  clocks.zip(start).map { |now, before| now - before }
end

def answer
  $stdout.sync = true
  while (line = $stdin.gets)
    puts work(Integer(line)).join(" ")
  end
end

# The stack of `work`: itself, `answer`, as many of these as it takes, and <main>.
def down(left)
  left == 0 ? answer : down(left - 1)
end

down(Integer(ARGV[0]) - 4)
