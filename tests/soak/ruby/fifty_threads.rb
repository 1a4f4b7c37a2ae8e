# Fifty threads that work a little, each at its own time.
def work
  500.times { |number| number.to_s }
end

threads = Array.new(50) do |number|
  Thread.new do
    loop do
      work
      sleep(0.1 + number * 0.01)
    end
  end
end
puts "ready"
$stdout.flush
threads.each(&:join)
