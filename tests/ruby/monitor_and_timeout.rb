# SPDX-License-Identifier: Apache-2.0
# Locks and limits around the spin: Monitor, Mutex, Timeout with its thread, Thread.handle_interrupt, catch.

require_relative "oracle"
require "monitor"
require "timeout"

class Guarded
  include MonitorMixin

  def run
    synchronize { Monitor.new.synchronize { in_mutex } }
  end

  def in_mutex
    Mutex.new.synchronize { Thread.handle_interrupt(RuntimeError => :never) { limited } }
  end

  def limited
    Timeout.timeout(3600) { catch { |tag| spin(tag) if others_sleep } }
  end

  # The thread that Timeout starts, or wakes, works for a moment first: not while we spin.
  def others_sleep
    loop do
      sleep 0.05
      return true if (Thread.list - [Thread.current]).all?(&:stop?)
    end
  end

  def spin(_)
    expect(caller_locations(0)); nil while true
  end
end

Guarded.new.run
