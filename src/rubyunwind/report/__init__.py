# SPDX-License-Identifier: Apache-2.0
"""What is asked of recordings: a part of them, their hottest methods and lines, how two of them differ."""
