# SPDX-License-Identifier: Apache-2.0
"""The random bits of stochastic rounding.

The bits of an element depend only on the user's seed, the name of its tensor and its index there. So the result does
not depend on how a tensor is cut into pieces, on the order of the work or on the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC
from gpucast.files.tensor import Array


def tensor_seed(seed: int, name: str) -> int:
    """The seed of one tensor: the first 8 bytes of SHA-256 over seed (8 bytes) and name (UTF-8), all little-endian.

    With it ``gpucast.cast(x, to, rounding="stochastic", seed=...)`` gives the bits that `gpucast convert` writes.
    """
    digest = hashlib.sha256(seed.to_bytes(8, "little") + name.encode())
    return int.from_bytes(digest.digest()[:8], "little")


def placed(pieces: Iterable[Array]) -> Iterator[tuple[int, Array]]:
    """Each piece of a tensor, with the index of its first element."""
    start = 0
    for piece in pieces:
        yield start, piece
        start += piece.size


def moved(random: Random | None, start: int) -> Random | None:
    """The random bits for the elements from index `start` on."""
    return None if random is None else random._replace(offset=random.offset + start)


def keywords(random: Random | None) -> dict[str, Any]:
    """The keywords of `gpucast.cast` and `gpucast.quantize` that select these random bits."""
    return {} if random is None else {"rounding": STOCHASTIC, **random._asdict()}
