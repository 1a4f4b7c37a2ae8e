# SPDX-License-Identifier: Apache-2.0
# The same piece of work for each line of input, done at a given depth; the answer is how long it took.
# Arguments: depth of the Ruby stack. Input: rounds. Output: nanoseconds of CLOCK_MONOTONIC.

def work(rounds)
  start = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
  sum = 0
  while rounds > 0
    sum += rounds
    rounds -= 1
  end
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - start
end

def answer
  $stdout.sync = true
  while (line = $stdin.gets)
    puts work(Integer(line))
  end
end

# The stack of `work`: itself, `answer`, as many of these as it takes, and <main>.
def down(left)
  left == 0 ? answer : down(left - 1)
end

down(Integer(ARGV[0]) - 4)
