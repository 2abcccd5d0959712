# SPDX-License-Identifier: Apache-2.0
"""Tensors read, cast and written in pieces of bounded size."""
