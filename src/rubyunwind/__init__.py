# SPDX-License-Identifier: Apache-2.0
"""Samples running Ruby programs from the outside: kernel, native, C-function and Ruby frames in one stack."""
