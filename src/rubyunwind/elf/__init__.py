# SPDX-License-Identifier: Apache-2.0
"""ELF files: reading them, symbols, build ids and file ids, native unwind tables, readable names."""
