# SPDX-License-Identifier: Apache-2.0
# Calls whose receiver, operands and arguments lie lines apart, with blank ones between: the pc of each caller
# is behind its call, whose line is neither the first nor the last of its expression.

require_relative "oracle"

def spin
  expect(caller_locations(0)); nil while true
end

def spread
  a =

    [
      1.0 /

        spin.

          to_f,

      2

    ]
  a
end

def over(one,
         two = nil)
  yield(

    one,

    two

  )
end

over(
  1,

  2
) do |x,

      y|
  [
    x,

    [y].each do

      spread

    end

  ]
end
