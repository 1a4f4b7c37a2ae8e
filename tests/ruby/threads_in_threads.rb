# SPDX-License-Identifier: Apache-2.0
# A thread that is made by a thread whose maker has failed: its stack begins with its own block.

require_relative "oracle"

def spin(number)
  expect(caller_locations(0)); nil while true
end

Thread.report_on_exception = false
class Worker < Thread
  def initialize(number)
    super() { [number].each { |each| run_work(each) } }
  end

  def run_work(number)
    number == 0 ? spin(number) : Worker.new(number - 1).join
  end
end

failing = Thread.new do
  $worker = Worker.new(2)
  raise "the maker fails"
end
failing.join rescue nil
$worker.join
