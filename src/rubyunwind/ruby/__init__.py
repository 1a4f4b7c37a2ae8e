# SPDX-License-Identifier: Apache-2.0
"""Ruby in another process: finding it, where each version keeps what, and the names of its frames."""
