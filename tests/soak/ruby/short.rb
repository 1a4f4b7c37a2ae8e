# Uses some seconds of CPU time and ends. Argument: how many.
def work(seconds)
  before = used
  100.times { |number| number * number } while used < before + seconds
end

def used
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
end

work(Float(ARGV[0]))
