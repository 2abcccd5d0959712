# SPDX-License-Identifier: Apache-2.0
"""The arguments of `gpucast.warmup`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucast.core.rule import ATTRIBUTES

#: The fields of a request that are not True or False.
_NO_FLAGS = ("pairs", "quantize", "hadamard", "attributes")


@dataclass(frozen=True)
class WarmupRequest:
    """The arguments of `warmup`, except the architectures."""

    pairs: Iterable[tuple[Any, Any]] | None = None
    scale: bool = False
    amax: bool = False
    transposed: bool = False
    fused: bool = False
    many: bool = False
    mixed: bool = False
    grouped: bool = False
    row_scaled: bool = False
    quantize: str | Iterable[Any] = ()
    hadamard: int | Iterable[int] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """TypeError for a flag that is neither True nor False, and for an unknown attribute."""
        flags = {name: value for name, value in vars(self).items() if name not in _NO_FLAGS}
        for name, value in flags.items():
            check_flag(name, value)
        unknown = [name for name in self.attributes if name not in ATTRIBUTES]
        if unknown:
            known = ", ".join((*flags, "load", *ATTRIBUTES))
            raise TypeError(f"warmup: {unknown[0]}= is not known here; expected one of {known}")


def check_flag(name: str, value: Any) -> None:
    """TypeError for a value that is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"warmup: {name}={value!r} must be True or False")
