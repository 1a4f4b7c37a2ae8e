# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.0.
# A Ractor spins in a thread of its own, while the main one waits for what it says.

require_relative "oracle"

def spin_in_ractor(main)
  [1].each { main.send([places(caller_locations(0)), thread_id]); nil while true }
end

Ractor.new(Ractor.current) { |main| spin_in_ractor(main) }
expect_places(*Ractor.receive)
Ractor.receive
