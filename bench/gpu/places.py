# SPDX-License-Identifier: Apache-2.0
"""Where the arrays of a call are that runs on a device, and memory for its results there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpucast import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.quantization import Quantized

NDArray = npt.NDArray[Any]


class Place(Protocol):
    """Where the arrays of a call are."""

    @property
    def on_device(self) -> bool:
        """Whether it is a device."""

    @property
    def once(self) -> bool:
        """Whether calls go into given arrays alone, and not into new ones too."""

    def __call__(self, name: str, x: NDArray, *, whole: bool = False) -> Any:
        """A copy of a host array there. `whole`: numbers that are taken at multiples of their size alone."""


@dataclass(frozen=True)
class DeviceCall:
    """A call with a name; ``run(place)`` returns its results, however they are nested."""

    family: str
    name: str
    run: Callable[[Place], Any]


def both(place: Place, call: Callable[..., Any], out: Any) -> Any:
    """The result of a call into `out`, and into new arrays."""
    return (call(out=out),) if place.once else (call(out=out), call())


def like(place: Place, name: str, result: Any) -> Any:
    """Memory like that of a result on the host, with other bits."""
    if isinstance(result, Quantized):
        parts = {part: like(place, f"{name}.{part}", array) for part, array in result.parts().items()}
        return replace(result, **parts)
    if isinstance(result, PackedArray):
        return PackedArray(like(place, name, result.data), result.dtype, result.shape)
    if isinstance(result, tuple):
        names = getattr(result, "_fields", range(len(result)))
        made: list[Any] = [
            None if one is None else like(place, f"{name}.{of}", one) for of, one in zip(names, result, strict=True)
        ]
        return type(result)(*made) if hasattr(result, "_fields") else tuple(made)
    if dtype(result.dtype).packed:
        return like(place, name, PackedArray.pack(result))
    return place(name, np.full(result.nbytes, 0x5A, np.uint8).view(result.dtype).reshape(result.shape))


def empty(place: Place, name: str, to: str, shape: tuple[int, ...]) -> Any:
    x = np.empty(shape, dtype(to).numpy)
    there = like(place, name, x)
    # On the host casts of arrays to types below one byte are arrays of NumPy.
    return there if place.on_device else x


def placed(place: Place, name: str, x: Any) -> Any:
    """A host array, a PackedArray or a `Quantized` at a place."""
    if isinstance(x, Quantized):
        return replace(x, **{part: placed(place, f"{name}.{part}", array) for part, array in x.parts().items()})
    if isinstance(x, PackedArray):
        return PackedArray(place(name, x.data), x.dtype, x.shape)
    return place(name, x)
