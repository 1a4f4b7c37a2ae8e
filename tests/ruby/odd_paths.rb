# SPDX-License-Identifier: Apache-2.0
# Paths that evaluated code may claim to have: empty, with line breaks, quotes and bytes that are no text,
# very long ones, and lines that no file has.

require_relative "oracle"

PATHS = ["", " ", "two\nlines.rb", "a;b.rb", %(say "hi" 'there' `x`.rb), "<script>&amp;</script>.rb",
         "tab\tand\\backslash", "\xff\xfe.rb", "日本.rb", "日本.rb".encode("EUC-JP"), "\e[31mred\e[0m.rb", "-", "(eval)",
         "/long/#{'path' * 1000}.rb", "\u202Eright to left", "file.rb:7:in `other'", "a b", "\r", "\x7f"].freeze
LINES = [0, 1, -1, -2_000_000_000, 2_147_483_000, 65_536, 16_777_216, 42].freeze

def level(index)
  if index == PATHS.length
    expect(caller_locations(0)); nil while true
  end
  eval("\n[1].each { level(#{index + 1}) }", binding, PATHS[index], LINES[index % LINES.length])
end

level(0)
