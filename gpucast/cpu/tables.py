# SPDX-License-Identifier: Apache-2.0
"""Look-up tables of the host path, and the cache that holds them.

A table belongs to one rule. Its entries are codes of ``rule.dst``; its index is one of

- the code of a source of 8 or 16 bits (`by_code`),
- two codes of 8 bits, for two elements in one look-up (`by_pair`),
- the leading bits of a float32, for a destination of 8 bits or fewer (`by_leading_bits`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule
from gpucast.cpu.encode import decode, encode

Array = npt.NDArray[Any]

#: How many tables of each kind are kept, the latest ones. The largest has 512 KiB, so all take at most 32 MiB.
KEPT = 32


def too_long(entries: int, size: int) -> bool:
    """True where building a table would take longer than casting `size` elements without it."""
    return size < entries // 16


@lru_cache(maxsize=KEPT)
def by_code(rule: CastRule) -> Array:
    bits = max(8, rule.src.bits)
    codes = np.arange(1 << bits, dtype=rule.src.code_numpy)
    with np.errstate(all="ignore"):
        return _frozen(encode(decode(codes, rule.src), rule))


@lru_cache(maxsize=KEPT)
def by_pair(rule: CastRule) -> Array:
    """Index ``first << 8 | second``, entry ``first << bits | second``. This is correct in either byte order, because
    source and destination have the same element first."""
    single = by_code(rule)
    bits = 8 * single.itemsize
    wide = single.astype(f"uint{2 * bits}")
    return _frozen(((wide << wide.dtype.type(bits))[:, None] | wide[None, :]).reshape(-1))


def dropped_bits(dst: DType) -> int:
    """How many low bits of a float32 a table for `dst` folds into one sticky bit.

    The bits that are left hold the significand of `dst`, a round bit that identifies ties, and the sticky bit, which
    separates the two sides of a tie (and of an exact value). Larger ULPs (subnormals of `dst`, or beyond its range)
    need fewer bits. FLOAT8E8M0 needs one bit more: its smallest powers of two are subnormal in float32, where the
    leading bit is stored.
    """
    return 23 - (dst.mantissa_bits + 2) - (dst.family == "e8m0")


@lru_cache(maxsize=KEPT)
def by_leading_bits(rule: CastRule) -> Array:
    """Indexed by the leading bits of a float32, of which the last is the sticky bit."""
    dropped = dropped_bits(rule.dst)
    index = np.arange(1 << (32 - dropped), dtype=np.uint32)
    with np.errstate(all="ignore"):
        # An index with the sticky bit set stands for an open interval around its own value. Every boundary of `dst` has
        # that bit clear, so the whole interval is rounded like its middle.
        return _frozen(encode((index << np.uint32(dropped)).view(np.float32).astype(np.float64), rule))


@lru_cache(maxsize=KEPT)
def astype_keeps_low_bits(rule: CastRule) -> bool:
    """True where ``astype`` from the source to the unsigned integer that holds a code of ``rule.dst``, an integer type,
    gives the low bits that the rule requires.

    Its results for numbers out of range depend on the processor and the compiler. So every code is tried in a long
    array, and some as single elements, which are not converted by vector instructions.
    """
    codes = np.arange(1 << rule.src.bits, dtype=rule.src.code_numpy)
    alone = codes[:: codes.size // 256]
    mask = rule.dst.code_numpy.type(rule.dst.code_mask)
    with np.errstate(all="ignore"):
        got = [part.view(rule.src.numpy).astype(rule.dst.code_numpy) & mask for part in (codes, *alone[:, None])]
    return bool((got[0] == by_code(rule)).all() and (np.concatenate(got[1:]) == by_code(rule)[alone]).all())


def _frozen(table: Array) -> Array:
    # One table serves every thread.
    table.flags.writeable = False
    return table
