# SPDX-License-Identifier: Apache-2.0
# rescue, retry, else and ensure in one another, left by break, throw, return and exceptions.

require_relative "oracle"

class Trouble
  def retrying
    tries = 0
    begin
      tries += 1
      raise ArgumentError, "again" if tries < 3
      [1].each { breaking }
    rescue ArgumentError
      retry
    end
  end

  def breaking
    [1, 2].each do |number|
      begin
        break number
      ensure
        throwing
      end
    end
  end

  def throwing
    catch(:out) do
      begin
        throw :out
      ensure
        catch(:other) { raising }
      end
    end
  end

  def raising
    raise "first"
  rescue => first
    begin
      raise TypeError, "second"
    rescue TypeError
      begin
        Integer("no number") rescue with_else(first)
      ensure
        nil
      end
    end
  end

  def with_else(error)
    nil
  rescue
    nil
  else
    begin
      raise error
    ensure
      begin
        raise IOError, "third"
      rescue IOError, SystemCallError
        [1].each { expect(caller_locations(0)); nil while true }
      end
    end
  end
end

Trouble.new.retrying
