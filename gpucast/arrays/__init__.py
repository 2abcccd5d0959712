# SPDX-License-Identifier: Apache-2.0
<<<<<<< 0ebf6748bb35bfde0c90fe76ba609b9f262f9c03
"""Arrays: those of types below one byte, trees of them, overlapping memory, and those of other libraries."""
=======
"""Arrays: PackedArray, bit packing, overlap, trees, and the registry of other libraries' arrays."""
>>>>>>> d1c408d3472f0247c1ef23345305317afaeb61f5
