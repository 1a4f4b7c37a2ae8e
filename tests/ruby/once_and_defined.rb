# SPDX-License-Identifier: Apache-2.0
# Code in places of its own: a pattern that is made once, defined?, BEGIN, a heredoc, a condition, a flip-flop.

require_relative "oracle"

BEGIN { BEGUN = [1] }

def in_pattern
  "text" =~ /#{in_defined}/o
end

def in_defined
  defined?(in_heredoc.class)
end

def in_heredoc
  <<~TEXT
    one line
    #{[1].map do |number|
      in_flip_flop(number)
    end}
  TEXT
end

def in_flip_flop(number)
  return 1 if (in_while(number))..(number == 2)
end

def in_while(number)
  begin
    number += 1
  end while in_until(number)
end

def in_until(_number)
  0 until BEGUN.each { expect(caller_locations(0)); nil while true }
end

in_pattern
