# SPDX-License-Identifier: Apache-2.0
"""Processes from the outside: memory, mappings, identity."""
