# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.0.
# A fiber scheduler: `sleep` in a fiber calls the scheduler's Ruby code, which calls back.

require "fiber" # Fiber.current, before 3.1
require_relative "oracle"

class Scheduler
  def initialize
    @ready = []
  end

  def run
    while (fiber = @ready.shift)
      fiber.resume if fiber.alive?
    end
  end
  alias close run

  def fiber(&block)
    Fiber.new(blocking: false, &block).tap(&:resume)
  end

  def kernel_sleep(duration = nil)
    if duration == 0.5
      expect(caller_locations(0)); nil while true
    end
    @ready << Fiber.current
    Fiber.yield
  end

  def io_wait(_io, events, _timeout)
    events
  end

  def block(_blocker, _timeout = nil)
    Fiber.yield
  end

  def unblock(_blocker, fiber)
    @ready << fiber
  end
end

def work
  [0, 0.5].each { |duration| sleep(duration) }
end

Thread.new do
  Fiber.set_scheduler(Scheduler.new)
  Fiber.schedule { work }
end.join
