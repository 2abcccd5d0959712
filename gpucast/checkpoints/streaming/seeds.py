# SPDX-License-Identifier: Apache-2.0
"""The random bits of stochastic rounding: those of an element go by the user's seed, the name of its tensor and its
place there, and so are the same in whatever pieces, in whatever order and on whatever machine it is cast.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC
from gpucast.files.tensor import Array


def tensor_seed(seed: int, name: str) -> int:
    """The seed of one tensor: the first 8 bytes of SHA-256 of the seed (8 bytes) and the name (UTF-8); low bytes first.

    With it ``gpucast.cast(x, to, rounding="stochastic", seed=...)`` gives the bits that `gpucast convert` writes.
    """
    told = hashlib.sha256(seed.to_bytes(8, "little") + name.encode())
    return int.from_bytes(told.digest()[:8], "little")


def placed(pieces: Iterable[Array]) -> Iterator[tuple[int, Array]]:
    """Each piece of a tensor with the number of its first element."""
    start = 0
    for piece in pieces:
        yield start, piece
        start += piece.size


def moved(random: Random | None, start: int) -> Random | None:
    """The random bits of the elements from `start` on."""
    return None if random is None else random._replace(offset=random.offset + start)


def keywords(random: Random | None) -> dict[str, Any]:
    """The keywords of `gpucast.cast` and `gpucast.quantize` for these bits."""
    return {} if random is None else {"rounding": STOCHASTIC, **random._asdict()}
