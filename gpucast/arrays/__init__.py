# SPDX-License-Identifier: Apache-2.0
"""Arrays: those of types below one byte, trees of them, overlapping memory, and those of other libraries."""
