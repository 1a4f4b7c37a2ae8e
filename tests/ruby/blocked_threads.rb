# SPDX-License-Identifier: Apache-2.0
# Seven threads that wait in C, each in another way, and the main thread, which spins. All eight stacks are
# printed, by the main thread: those that wait keep theirs.

require_relative "oracle"

READER, WRITER = IO.pipe
LOCK = Mutex.new
LOCK.lock
CHANGED = ConditionVariable.new
QUEUE = Queue.new

def sleeping
  [1].each { sleep }
end

def popping
  QUEUE.pop
end

def reading
  READER.read(1)
end

def locking
  LOCK.synchronize { raise "never" }
end

def waiting
  own = Mutex.new
  own.synchronize { CHANGED.wait(own) }
end

def selecting
  IO.select([READER])
end

threads = [:sleeping, :popping, :reading, :locking, :waiting, :selecting].map do |way|
  Thread.new do
    Thread.current[:tid] = thread_id || 0
    1.times { send(way) }
  end
end
threads << Thread.new do
  Thread.current[:tid] = thread_id || 0
  threads.first.join
end
Thread.pass until threads.all? { |thread| thread.status == "sleep" && thread.key?(:tid) }
sleep 0.05 # a thread that waits may still be on its way into the wait
threads.each { |thread| expect(thread.backtrace_locations, thread[:tid], spins: false) }
expect(caller_locations(0)); nil while true
