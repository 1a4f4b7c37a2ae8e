# SPDX-License-Identifier: Apache-2.0
# Threads that wait, each in its own way, once a line has been read from standard input. Each prints the
# stack with which it waited, how often, and for how many nanoseconds altogether, by its own clock. Then the
# main thread sleeps for ever, and prints that before.

require_relative "oracle"

ROUNDS = 6
NAP = 0.06
WAITS = {}

def clock
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

# Counts what the block takes. The block gives the stack with which it has waited.
def timed
  before = clock
  stack = yield
  ns = clock - before
  known = WAITS[thread_id] ||= { ns: 0, rounds: 0 }
  known[:ns] += ns
  known[:rounds] += 1
  known[:frames] = places(stack)
end

def sleeping
  stack = caller_locations(0); sleep(NAP); stack
end

def popping(queue)
  stack = caller_locations(0); queue.pop; stack
end

def reading(io)
  stack = caller_locations(0); io.sysread(1); stack
end

def locking(lock)
  stack = caller_locations(0); lock.lock; lock.unlock; stack
end

def report(kind)
  wait = WAITS[thread_id]
  print_line(JSON.generate({ pid: Process.pid, tid: thread_id, kind: kind, **wait }))
end

print_line(JSON.generate({ pid: Process.pid }))
$stdin.gets

child = fork do
  WAITS.clear
  ROUNDS.times { timed { sleeping } }
  report("child")
  exit!(0)
end

queue = Queue.new
reader, writer = IO.pipe
lock = Mutex.new
free = Queue.new
threads = [
  Thread.new { ROUNDS.times { timed { sleeping } }; report("sleeping") },
  Thread.new { ROUNDS.times { timed { popping(queue) } }; report("popping") },
  Thread.new { ROUNDS.times { timed { reading(reader) } }; report("reading") },
  Thread.new { ROUNDS.times { free.pop; timed { locking(lock) } }; report("locking") },
]
ROUNDS.times do
  lock.lock
  free << true
  sleep(NAP)
  lock.unlock
  queue << true
  writer.syswrite(".")
end
threads.each(&:join)
Process.wait(child)
expect(caller_locations(0), spins: false); sleep
