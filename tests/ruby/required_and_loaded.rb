# SPDX-License-Identifier: Apache-2.0
# Files that spin while they are loaded: by require_relative, require, load, load in a module, and autoload.

require_relative "oracle"

PARTS = File.join(__dir__, "parts")
LOADED = lambda do
  $loads = $loads.to_i + 1
  $loads == 1 ? load(File.join(PARTS, "loaded.rb"), true) : autoloaded
end

module Loading
  def self.call
    load File.join(PARTS, "loaded.rb")
  end
end

autoload :Autoloaded, File.join(PARTS, "autoloaded.rb")

def autoloaded
  Autoloaded
end

require_relative "parts/required"
