# SPDX-License-Identifier: Apache-2.0
# A test program calls `expect(caller_locations(0))` and then spins on that very line: what is printed here
# is its own stack, leaf first, as Ruby sees it.

require "json"

OUTPUT_LOCK = Mutex.new

# Asked of the kernel: the child of a fork may still have its parent's number in Thread#native_thread_id.
def thread_id
  Integer(File.basename(File.readlink("/proc/thread-self")))
rescue SystemCallError
  Thread.current.respond_to?(:native_thread_id) ? Thread.current.native_thread_id : nil
end

# A C function at the very base of a fiber has no place, as no Ruby code called it.
def places(locations)
  locations.map { |location| [location.path.to_s, location.lineno.to_i, location.label] }
end

def expect(locations, tid = thread_id, spins: true)
  expect_places(places(locations), tid, spins: spins)
end

def expect_places(frames, tid, spins: true)
  frames = frames.map { |path, line, label| [as_bytes(path), line, as_bytes(label)] }
  print_line(as_surrogates(JSON.generate({ pid: Process.pid, tid: tid, spins: spins, frames: frames })))
end

# Says that this Ruby has not what the program is about, and ends it.
def unavailable(reason)
  print_line(JSON.generate({ unavailable: reason }))
  exit!
end

def print_line(text)
  OUTPUT_LOCK.synchronize { $stdout.syswrite("#{text}\n") }
rescue ThreadError # the handler of a signal must not take a lock
  $stdout.syswrite("#{text}\n")
end

# Paths and labels are bytes of any encoding, JSON is UTF-8. A byte that is no UTF-8 goes the way Python has
# for it (surrogateescape); private characters stand for these bytes until the text is JSON.
def as_bytes(text)
  text.b.force_encoding("UTF-8").scrub { |wrong| wrong.bytes.map { |byte| [0xf700 + byte].pack("U") }.join }
end

def as_surrogates(json)
  json.gsub(/[\u{f780}-\u{f7ff}]/) { |stand_in| format('\ud%03x', 0xc00 + stand_in.ord - 0xf700) }
end
