# SPDX-License-Identifier: Apache-2.0
# A test program calls `expect(caller_locations(0))` and then spins on that very line: what is printed here
# is its own stack, leaf first, as Ruby sees it.

require "json"

OUTPUT_LOCK = Mutex.new

def thread_id
  Thread.current.respond_to?(:native_thread_id) ? Thread.current.native_thread_id : nil
end

def expect(locations)
  frames = locations.map { |location| [location.path, location.lineno, location.label] }
  OUTPUT_LOCK.synchronize do
    puts JSON.generate({ pid: Process.pid, tid: thread_id, frames: frames })
    $stdout.flush
  end
end
