# SPDX-License-Identifier: Apache-2.0
"""Arrays: PackedArray, bit packing, overlap, trees, and the registry of other libraries' arrays."""
