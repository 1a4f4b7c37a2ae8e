# SPDX-License-Identifier: Apache-2.0
# What required_and_loaded.rb loads, with and without a module around it.

def in_loaded
  [1].each { LOADED.call }
end

in_loaded
