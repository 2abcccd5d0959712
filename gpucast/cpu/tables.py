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
from gpucast.core.rule import Rule
from gpucast.cpu.encode import decode, encode

Array = npt.NDArray[Any]

#: Tables of each kind that are kept, the latest ones; the largest has 512 KiB, so that they take 32 MiB at most.
KEPT = 32


def too_long(entries: int, size: int) -> bool:
    """True where building a table would take longer than casting `size` elements without it."""
    return size < entries // 16


@lru_cache(maxsize=KEPT)
def by_code(rule: Rule) -> Array:
    bits = max(8, rule.src.bits)
    codes = np.arange(1 << bits, dtype=rule.src.code_numpy)
    with np.errstate(all="ignore"):
        return _frozen(encode(decode(codes, rule.src), rule))


@lru_cache(maxsize=KEPT)
def by_pair(rule: Rule) -> Array:
    """Index ``first << 8 | second``, entry ``first << bits | second``: right in either byte order, because source and
    destination put the same element first."""
    single = by_code(rule)
    bits = 8 * single.itemsize
    wide = single.astype(f"uint{2 * bits}")
    return _frozen(((wide << wide.dtype.type(bits))[:, None] | wide[None, :]).reshape(-1))


def dropped_bits(dst: DType) -> int:
    """Low bits of a float32 that a table for `dst` folds into one sticky bit. What is left holds the significand of
    `dst`, one bit more, which tells a tie, and the sticky bit, which tells one side of a tie (and of an exact value)
    from the other. Larger spacings (subnormals of `dst`, or beyond its range) need fewer bits. FLOAT8E8M0 has whole
    binades where float32 has subnormals already, whose leading bit is a stored one: one bit more."""
    return 23 - (dst.mantissa_bits + 2) - (dst.family == "e8m0")


@lru_cache(maxsize=KEPT)
def by_leading_bits(rule: Rule) -> Array:
    """Index: the leading bits of a float32, the last of them set if any dropped bit was."""
    dropped = dropped_bits(rule.dst)
    index = np.arange(1 << (32 - dropped), dtype=np.uint32)
    with np.errstate(all="ignore"):
        # An index whose last bit is set stands for a whole open interval around its own value. Every boundary of `dst`
        # has that bit clear, so all of the interval goes where its middle goes.
        return _frozen(encode((index << np.uint32(dropped)).view(np.float32).astype(np.float64), rule))


@lru_cache(maxsize=KEPT)
def astype_keeps_low_bits(rule: Rule) -> bool:
    """True where ``astype`` to the unsigned integer that holds a code of ``rule.dst``, an integer, gives the low bits
    that the rule wants. What it gives for numbers out of range is the processor's and the compiler's choice, so every
    code is tried, in a long array, and some alone, where code for vectors is not used."""
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
