# SPDX-License-Identifier: Apache-2.0
"""Profiles pushed to a receiver over HTTP, in batches, with a spool for what it does not take at once."""
