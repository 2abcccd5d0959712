# SPDX-License-Identifier: Apache-2.0
"""The options of one call of `gpucast.cast` or `cast_like`, apart from the array and the type, and the operators'
versions.

Source: the Cast and CastLike schemas of ONNX opsets 1 to 28.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpucast.core.dtypes import DType, dtype

#: Fixed within a major version of gpucast, so that an upgrade changes no bits.
DEFAULT_OPSET = 28

#: The opsets in which a new version of each operator appeared.
CAST_VERSIONS = (1, 6, 9, 13, 19, 21, 23, 24, 25, 28)
CASTLIKE_VERSIONS = (15, 19, 21, 23, 24, 25)


class Options(NamedTuple):
    """The keywords of `gpucast.cast` as given, in their order; then the caller and the versions of its operator."""

    saturate: Any = True
    round_mode: Any = "up"
    opset: Any = DEFAULT_OPSET
    rounding: Any = None
    overflow: Any = None
    seed: Any = None
    offset: Any = 0
    scale: Any = None
    amax: Any = None
    device: Any = None
    out: Any = None
    copy: Any = True
    caller: str = "cast"
    versions: tuple[int, ...] = CAST_VERSIONS


#: The operator's attributes and gpucast's own keywords: together they decide on a rule.
ATTRIBUTES = Options._fields[:5]


def destination(to: Any, caller: str) -> DType:
    """The dtype to cast to: `to` of `gpucast.cast`, or the dtype of `like` of `cast_like`, as the TypeError says."""
    return dtype(to, caller="cast: to=" if caller == "cast" else f"{caller}: like.dtype=")
