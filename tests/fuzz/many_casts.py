# SPDX-License-Identifier: Apache-2.0
"""Casts of all kinds with the results of the reference, for threads and forks that make them all at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpucast
from fuzz import strategies
from gpucast import reference
from gpucast.core.dtypes import DTYPES
from gpucast.quantization import FORMATS
from processor_modes import sometimes


@dataclass(frozen=True)
class Known:
    """A call, and the bytes of its result."""

    call: Callable[[], Any]
    wanted: bytes

    def is_right(self) -> bool:
        with sometimes():
            found = self.call()
        return _bytes(found) == self.wanted


def _bytes(result: Any) -> bytes:
    if isinstance(result, gpucast.Quantized):
        return b"".join(_bytes(part) for part in result.parts().values())
    if isinstance(result, list):
        return b"".join(map(_bytes, result))
    if isinstance(result, gpucast.PackedArray):
        return bytes(result.data)
    return repr(result.tolist()).encode() if result.dtype == object else bytes(result.tobytes())


def known(count: int, seed: int = 0) -> list[Known]:
    """As many calls: casts, casts of trees, quantizations."""
    made: list[Known] = []
    rng = random.Random(seed)
    while len(made) < count:
        x = strategies.codes(rng.choice(DTYPES), (rng.randrange(40), 3), rng.randrange(1 << 32))
        to = rng.choice(DTYPES)
        attributes = {"saturate": rng.random() < 0.5}
        try:
            wanted = _bytes(reference.cast(x, to, **attributes))
        except (TypeError, ValueError, OverflowError):
            continue
        made.append(Known(lambda x=x, to=to, more=attributes: gpucast.cast(x, to, **more), wanted))
        made.append(Known(lambda x=x, to=to, more=attributes: gpucast.cast_many([x, x], to, **more), 2 * wanted))
    for name in rng.sample(sorted(FORMATS), 8):
        x = strategies.codes(gpucast.dtype("FLOAT16"), (4, 256), rng.randrange(1 << 32))
        x[~np.isfinite(x)] = 1
        made.append(Known(lambda x=x, name=name: gpucast.quantize(x, name), _bytes(gpucast.quantize(x, name))))
    return made
