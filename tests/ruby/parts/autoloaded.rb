# SPDX-License-Identifier: Apache-2.0
# What required_and_loaded.rb loads by the name of a constant.

module Autoloaded
  [1].each { expect(caller_locations(0)); nil while true }
end
