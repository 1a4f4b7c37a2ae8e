# SPDX-License-Identifier: Apache-2.0
# Blocks in blocks, twelve deep, in a method, in one that define_method made, and at the top level.

require_relative "oracle"

class Nest
  def twelve
    [1].each { [2].each { [3].each { [4].each { [5].each { [6].each {
      [7].each { [8].each { [9].each { [10].each { [11].each { [12].each { yield } } } } } }
    } } } } } }
  end

  define_method(:twelve_more) do |block|
    [1].each { [2].each { [3].each { [4].each { [5].each { [6].each {
      [7].each { [8].each { [9].each { [10].each { [11].each { [12].each { block.call } } } } } }
    } } } } } }
  end
end

[1].each { [2].each { [3].each { [4].each { [5].each { [6].each { [7].each { [8].each {
  Nest.new.twelve { Nest.new.twelve_more(-> { expect(caller_locations(0)); nil while true }) }
} } } } } } } }
