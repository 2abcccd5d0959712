# SPDX-License-Identifier: Apache-2.0
"""The random Hadamard transform of runs of numbers, as a checked option of a call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: The lengths that have kernels and loops.
LENGTHS = (16, 32, 64, 128)
_WORD = 32


class Hadamard(NamedTuple):
    """A transform of runs of `length` numbers. Bit i of `negative` is set where sign i is -1."""

    length: int
    negative: int = 0

    @property
    def factor(self) -> np.float32:
        """1 / sqrt(length), rounded to FLOAT: exact for 16 and 64."""
        return np.float32(self.length**-0.5)

    @property
    def words(self) -> npt.NDArray[np.uint32]:
        """The bits of `negative` as four words, the low one first."""
        return np.array([self.negative >> i * _WORD & 2**_WORD - 1 for i in range(LENGTHS[-1] // _WORD)], np.uint32)
