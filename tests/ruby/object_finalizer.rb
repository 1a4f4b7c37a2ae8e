# SPDX-License-Identifier: Apache-2.0
# The finalizer of an object spins: at the end of the program, or, with "collected" as argument, when the
# object was collected while the program runs.

require_relative "oracle"

class Finalizer
  def call(_id)
    [1].each { expect(caller_locations(0)); nil while true }
  end
end

def register
  ObjectSpace.define_finalizer(Object.new, Finalizer.new)
end

100.times { register }
if ARGV[0] == "collected"
  [1].each { GC.start }
  loop { Array.new(1000) { Object.new } }
end
