# SPDX-License-Identifier: Apache-2.0
# eval in its forms: with and without a file and a line, of a binding, an object, a class; nested; and code
# that was compiled to an instruction sequence first.

require_relative "oracle"

class Evaluated
  def self.defined_here(&block)
    class_eval("def from_class_eval\n  [1].each do\n    yield\n  end\nend")
    module_eval("def from_module_eval\n yield\nend", "given.rb")
    class_exec(block) { |inner| inner.call(new) }
  end

  def a_binding
    local = 42
    binding
  end
end

def without_a_file
  eval("instance_eval('[1].each { with_a_file }')")
end

def with_a_file
  Evaluated.new.a_binding.eval("\n\nlocal.then { TOPLEVEL_BINDING.receiver.send(:with_a_big_line) }", "file.rb", 100)
end

def with_a_big_line
  binding.eval("\nwith_an_odd_line", "big.rb", 2_000_000_000)
end

def with_an_odd_line
  eval("compiled", binding, __FILE__, 0)
end

def compiled
  RubyVM::InstructionSequence.compile("\n\nTOPLEVEL_BINDING.receiver.send(:spin)", "compiled", "/real/path", 7).eval
end

def spin
  "text".instance_eval { "more".instance_exec(1) { |_| TOPLEVEL_BINDING.receiver.send(:last) } }
end

def last
  eval("eval(\"eval('expect(caller_locations(0)); nil while true')\")")
end

Evaluated.defined_here do |object|
  object.from_class_eval { object.from_module_eval { without_a_file } }
end
