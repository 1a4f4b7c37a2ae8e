# SPDX-License-Identifier: Apache-2.0
"""Debian's Rubies, the programs that print their own stack, and the ways to sample them: all against all."""
