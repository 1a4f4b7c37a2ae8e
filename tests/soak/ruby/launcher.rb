# Starts the command that its arguments are for each line of its input, with the line as one more argument.
# Says so first, and waits for all of them in the end.
puts "ready"
$stdout.flush
while (line = $stdin.gets)
  Process.detach(Process.spawn(*ARGV, line.strip))
end
Process.waitall
