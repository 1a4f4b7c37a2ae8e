# SPDX-License-Identifier: Apache-2.0
"""The live table: counts of samples, a table of them, and the terminal that it is shown on."""
