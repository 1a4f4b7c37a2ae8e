# SPDX-License-Identifier: Apache-2.0
# Evaluated code says which file and line it has, also ones that do not exist.

require_relative "oracle"

class Template
  eval("def render\n  yield\nend", binding, "views/page.html.erb", 7)
end

def below_zero
  eval("nested = -> {\n eval('expect(caller_locations(0)); nil while true', binding, 'inner eval', 12) }\nnested.call",
    binding, "negative.rb", -10)
end

Template.new.render { below_zero }
