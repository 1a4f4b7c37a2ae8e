# SPDX-License-Identifier: Apache-2.0
"""An agent that samples everything while processes come and go: what it costs, what it leaves."""
