# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.1.
# Pattern matching calls deconstruct, deconstruct_keys and ===.

require_relative "oracle"

class Matched
  def deconstruct
    case { matched: self }
    in { matched: Matched(kept:) }
      kept
    end
  end

  def deconstruct_keys(_keys)
    case 1
    in ^(Checked.new) then {}
    end
  end
end

class Checked
  def ===(_other)
    expect(caller_locations(0)); nil while true
  end
end

case Matched.new
in [first, *] then first
end
