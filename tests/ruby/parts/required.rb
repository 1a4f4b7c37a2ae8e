# SPDX-License-Identifier: Apache-2.0
# What required_and_loaded.rb requires.

class InRequired
  def self.run
    [1].each { yield }
  end

  run { Loading.call }
end
