# SPDX-License-Identifier: Apache-2.0
# Nothing but the top level: the stack is one frame.

require_relative "oracle"

expect(caller_locations(0)); nil while true
