# -*- coding: Windows-1252 -*-
# SPDX-License-Identifier: Apache-2.0
# A source file in another encoding than UTF-8: its names are bytes that are no UTF-8.

require_relative "oracle"

class Schlüssel
  def größe
    [1].each { prüfen }
  end

  def prüfen
    "naïve €".then { expect(caller_locations(0)); nil while true }
  end
end

Schlüssel.new.größe
