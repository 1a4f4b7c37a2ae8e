# SPDX-License-Identifier: Apache-2.0
# The child of a fork spins, below the frames it was forked in; its parent waits.

require_relative "oracle"

def in_child
  [1].each { expect(caller_locations(0)); nil while true }
end

def forking
  fork { in_child }
end

[1].each { Process.wait(forking) }
