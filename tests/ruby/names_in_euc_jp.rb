# -*- coding: EUC-JP -*-
# SPDX-License-Identifier: Apache-2.0
# A source file in another encoding than UTF-8: its names are bytes that are no UTF-8.

require_relative "oracle"

class K日本
  def 検索
    [1].each { 集計する }
  end

  def 集計する
    "日本語".then { expect(caller_locations(0)); nil while true }
  end
end

K日本.new.検索
