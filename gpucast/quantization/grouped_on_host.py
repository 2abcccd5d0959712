# SPDX-License-Identifier: Apache-2.0
"""Groups of rows of NumPy arrays, quantized or cast one group after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.arrays.packed import PackedArray
from gpucast.casting.cast import cast
from gpucast.core.dtypes import DType
from gpucast.core.fuse import Random
from gpucast.core.rounding import STOCHASTIC
from gpucast.quantization import quantize_on_host, swizzle
from gpucast.quantization.formats import Format


def fill(
    parts: list[Any],
    x: Any,
    offsets: Any,
    element: DType,
    format: Format | None,
    scale: Any,
    pad: int,
    layout: str,
    random: Random | None,
) -> None:
    """Fill the parts of a result: codes, scales, ends of groups, and the number of valid ones, as `Grouped` has them.

    `format`: None for a cast to `element`. `scale`: a float, or an array with one for all groups or one for each.
    """
    data, scales, ends, valid = parts
    codes = np.zeros(data.shape, element.numpy)
    linear = None
    if format is not None:
        linear = np.zeros((data.shape[0], data.shape[1] // format.block[-1]), format.scale.numpy)
    begin = to = count = 0
    for i, end in enumerate(offsets.tolist()):
        if not begin <= end <= len(x):
            break
        rows = x[begin:end]
        factor = scale if isinstance(scale, float) else scale[i % scale.size]
        # A group has the words of its place in x.
        own = None if random is None else random._replace(offset=random.offset + begin * x.shape[1])
        if not rows.size:
            # Its words may begin behind the last ones.
            pass
        elif format is None:
            at_random: Any = {} if own is None else {"rounding": STOCHASTIC, **own._asdict()}
            codes[to : to + len(rows)] = _unpacked(
                cast(rows, element, scale=np.asarray(factor, np.float32), **at_random)
            )
        else:
            given = factor if format.global_scale else None
            found = quantize_on_host.quantize(rows, format, scale=given, random=own)
            codes[to : to + len(rows)] = found.data
            linear[to : to + len(rows)] = found.scales  # type: ignore[index]
        to += -(-len(rows) // pad) * pad
        ends[i], begin, count = to, end, i + 1
    ends[count:], valid[...] = to, count
    if isinstance(data, PackedArray):
        data.data[...] = PackedArray.pack(codes).data
    else:
        data[...] = codes
    if linear is not None:
        scales[...] = linear if layout == "linear" else swizzle.swizzle(linear, layout=layout)  # type: ignore[arg-type]


def _unpacked(y: Any) -> Any:
    return y.get() if isinstance(y, PackedArray) else y
