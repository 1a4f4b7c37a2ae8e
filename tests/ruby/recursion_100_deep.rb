# SPDX-License-Identifier: Apache-2.0
# 100 levels that alternate between plain calls and blocks.

require_relative "oracle"

def down(level)
  if level == 0
    expect(caller_locations(0)); nil while true
  end
  level.even? ? down(level - 1) : across(level - 1) { |next_level| down(next_level) }
end

def across(level)
  yield level
end

down(100)
