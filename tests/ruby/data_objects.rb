# SPDX-License-Identifier: Apache-2.0
# Needs Ruby 3.3.
# Methods of Data classes, their initialize with keywords, and a copy by `with`, which 3.2 does not initialize.

require_relative "oracle"

Measure = Data.define(:amount, :unit) do
  def initialize(amount:, unit: "m")
    super
    spin if unit == "spin"
  end

  def changed
    [self].each { |measure| measure.with(unit: "spin") }
  end

  def spin
    expect(caller_locations(0)); nil while true
  end
end

Measure.new(amount: 1).changed
