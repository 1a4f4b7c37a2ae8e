# SPDX-License-Identifier: Apache-2.0
"""Attaches the tracer to processes, follows them, and turns their traces into samples."""
