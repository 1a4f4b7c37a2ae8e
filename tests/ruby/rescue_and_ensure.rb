# SPDX-License-Identifier: Apache-2.0
# Code that runs in rescue and ensure clauses, also in one another, in a method that uses $~ (an svar stands before
# its method entry).

require_relative "oracle"

class Careful
  def rescuing
    "text" =~ /(ex)/
    raise $1
  rescue RuntimeError
    [1].each { nested }
  end

  def nested
    raise "first"
  rescue RuntimeError
    begin
      raise "second"
    rescue RuntimeError
      begin
        raise "third"
      ensure
        ensuring
      end
    end
  end

  def ensuring
    return 1
  ensure
    "more" =~ /o/
    "more".gsub(/r/) { expect(caller_locations(0)); nil while true }
  end
end

begin
  raise "again"
rescue
  Careful.new.rescuing
end
