# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.0.
# Two Ractors spin at the same time, in different methods, and neither holds the other's lock.

require_relative "oracle"

def first_spin(main)
  main.send([places(caller_locations(0)), thread_id]); nil while true
end

def second_spin(main)
  1.upto(2) { main.send([places(caller_locations(0)), thread_id]); nil while true }
end

Ractor.new(Ractor.current) { |main| first_spin(main) }
Ractor.new(Ractor.current) { |main| [1].map { second_spin(main) } }
2.times { expect_places(*Ractor.receive) }
Ractor.receive
