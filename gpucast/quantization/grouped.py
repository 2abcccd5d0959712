# SPDX-License-Identifier: Apache-2.0
"""Groups of rows, such as the tokens of experts: quantized or cast at once, each with its own scale and padding.

>>> x, offsets = np.ones((5, 64), np.float32), np.int32([2, 5])  # rows 0 and 1, rows 2 to 4
>>> grouped = gpucast.quantize_grouped(x, offsets, "mxfp8e4m3", pad=4)
>>> grouped.data.shape, grouped.offsets
((8, 64), array([4, 8], dtype=int32))
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from gpucast import kernel as kernels
from gpucast.arrays import libraries
from gpucast.arrays.array import check_written
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.overlap import Place
from gpucast.arrays.packed import PackedArray, as_array, device_index
from gpucast.casting import engines
from gpucast.core.arithmetic import exact
from gpucast.core.checks import integer, positive
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import Random
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.kernel import devices, streams
from gpucast.kernel.cast_kernel import VECTOR
from gpucast.quantization import cuda, grouped_on_host, plans, recipes
from gpucast.quantization.formats import LENGTHS, Format
from gpucast.quantization.option_checks import check_constant, resolve_random
from gpucast.quantization.quantized import of_library, source_array
from gpucast.quantization.scale_orders import SCALE_ORDERS, ScaleLayout, in_layout, order

#: `most_groups` of kernels/grouped.cu.
_MOST_GROUPS = 1024
#: The kernels count columns in 32 bits, up to the elements of a block of threads behind the last; and rows.
_MOST_COLUMNS = _MOST_ROWS = (1 << 32) - (1 << 13)
_LAYOUTS = tuple(row.name for row in SCALE_ORDERS if row.groups)


class Grouped(NamedTuple):
    """Groups of rows one after the other, each filled up to a multiple of `pad` rows. All padding is zero."""

    #: The codes, of shape (result rows, columns): an array of x's library, or a PackedArray for codes below one byte.
    data: Any
    #: The scales of the blocks, in the order that was asked for; None for a cast.
    scales: Any
    #: Where each group ends in `data`, its padding included, in the type of the offsets.
    offsets: Any
    #: INT32 of shape (): how many groups are valid. It is their number unless an offset is bad.
    valid: Any


def quantize_grouped(
    x: Any,
    offsets: Any,
    format: Any,
    *,
    scale: Any = None,
    pad: int = 128,
    scale_layout: ScaleLayout = "linear",
    rounding: Literal["stochastic"] | None = None,
    seed: int | None = None,
    offset: int = 0,
    out: Grouped | None = None,
) -> Grouped:
    """Quantize groups of rows as `gpucast.quantize` does each alone, in one launch that waits for nothing.

    Parameters
    ----------
    x
        A matrix of FLOAT, FLOAT16, BFLOAT16 or DOUBLE.
    offsets
        Where the groups end in x's rows, as in ``torch._grouped_mm``: INT32 or INT64, one number for each of at most
        1,024 groups, on the side of x. Group i has the rows from offsets[i - 1] (0 for the first) to offsets[i].
    format
        As for `gpucast.quantize`: blocks of 16, 32, 64 or 128 elements of a row, which divide the row, without zero
        points ("mxfp8e4m3", "nvfp4", "float8e4m3fn_1x128").
    scale
        The global scales of NVFP4: a number, or an array of FLOAT on the side of x with one for all or one for each.
    pad
        Groups begin at multiples of this power of two. The result has the rows of x and pad - 1 more for each group,
        rounded down to whole `pad`: as many as any offsets need.
    scale_layout
        "linear", "128x4" (with a `pad` of whole 128) or "mn_major" (of whole 4) of ``gpucast.quantization.swizzle``,
        for the whole result.
    rounding, seed, offset
        As for `gpucast.quantize`. Numbers have the random words of their places in x, whatever the groups are.
    out
        The result of an earlier, equal call, which is written and returned: a CUDA graph can capture the call, unless
        the codes (or x) are not at a multiple of 16 bytes, for which the call needs memory.

    The offsets are checked where they are. From the first group on whose end is below its begin or beyond the rows, all
    groups count as empty, and `Grouped.valid` is the number of groups before it; nothing outside of x is read.

    TypeError and ValueError as for `gpucast.quantize`.
    """
    keywords = offsets, scale, pad, scale_layout, rounding, seed, offset, out
    found: Grouped = plans.GROUPED.call(_quantize_grouped, x, format, keywords)
    return found


def cast_grouped(
    x: Any,
    offsets: Any,
    to: Any,
    *,
    scale: Any,
    pad: int = 1,
    rounding: Literal["stochastic"] | None = None,
    seed: int | None = None,
    offset: int = 0,
    out: Grouped | None = None,
) -> Grouped:
    """Cast groups of rows, each times a scale of its own, in one launch that waits for nothing.

    Each group has the bits of ``gpucast.cast(rows, to, scale=scale[i])``. `to`: a floating type. `scale`: an array of
    FLOAT with one for all or one for each group, or a number, which is rounded to FLOAT first. Rows have a multiple of
    16 elements. All else is as for `gpucast.quantize_grouped`.
    """
    keywords = offsets, scale, pad, None, rounding, seed, offset, out
    found: Grouped = plans.GROUPED_CASTS.call(_cast_grouped, x, to, keywords)
    return found


def check_grouped(format: Format, caller: str) -> None:
    """ValueError for a format in which groups cannot be quantized."""
    if not isinstance(format.block, tuple) or format.block[-1] not in LENGTHS or math.prod(format.block[:-1]) != 1:
        raise ValueError(
            f"{caller}: {format} has no blocks of 16, 32, 64 or 128 elements of a row; expected one such as "
            "mxfp8e4m3, nvfp4 or float8e4m3fn_1x128"
        )
    more = format.steps is not None and format.steps.code_needs_amax
    if format.zero_points or format.rule == "4over6" or more:
        raise ValueError(f"{caller}: {format} needs more for its codes than a scale")


@exact()
def _quantize_grouped(
    x: Any,
    format: Any,
    offsets: Any,
    scale: Any,
    pad: Any,
    scale_layout: Any,
    rounding: Any,
    seed: Any,
    offset: Any,
    out: Grouped | None,
) -> Grouped:
    caller = "quantize_grouped"
    asked, format = format, recipes.find(format, caller)
    check_grouped(format, caller)
    if format.global_scale and scale is None:
        raise ValueError(
            f"{caller}: scale=None with {format}; expected its global scale: one for all groups or for each"
        )
    if scale is not None and not format.global_scale:
        raise ValueError(f"{caller}: scale= is for formats with a global scale, not for {format}")
    random = resolve_random(format, rounding, seed, offset, caller)
    call = _Call(caller, x, offsets, format.block[-1], scale, pad, random)
    recipes.check_source(asked, format, call.src, caller)
    if isinstance(call.scale, np.ndarray) and not (np.isfinite(call.scale) & (call.scale > 0)).all():
        raise ValueError(f"{caller}: scale= must be finite and above 0 as FLOAT")
    itemsize = format.scale.bits // 8
    layouts = [name for name in _LAYOUTS if itemsize != 2 and itemsize in order(name).itemsizes]
    if not isinstance(scale_layout, str) or scale_layout not in layouts:
        raise ValueError(
            f"{caller}: scale_layout={scale_layout!r} must be one of {', '.join(map(repr, layouts)) or 'none'}, for "
            f"{format}"
        )
    if call.pad % order(scale_layout).height:
        height = order(scale_layout).height
        raise ValueError(f"{caller}: scale_layout={scale_layout!r} needs a pad of whole {height}, not {call.pad}")
    shape: tuple[int, ...] = call.result_rows, call.columns // format.block[-1]
    shape = in_layout(shape, scale_layout, format.scale.bits // 8)
    return call.run(
        out, format.element, (format.scale, shape), CastRule(call.src, format.element), format, scale_layout
    )


@exact()
def _cast_grouped(
    x: Any,
    to: Any,
    offsets: Any,
    scale: Any,
    pad: Any,
    _: None,
    rounding: Any,
    seed: Any,
    offset: Any,
    out: Grouped | None,
) -> Grouped:
    caller = "cast_grouped"
    dst = dtype(to, caller=f"{caller}: to=")
    if not dst.is_float:
        raise TypeError(f"{caller}: to={dst.name} must be a floating type, such as FLOAT8E4M3FN")
    random = resolve_random(None, rounding, seed, offset, caller)
    # The rows of a cast are whole multiples of the shortest block.
    call = _Call(caller, x, offsets, LENGTHS[0], scale, pad, random)
    rule = resolve(call.src, dst, Options(caller=caller, rounding=rounding, scale=1.0))
    return call.run(out, dst, None, rule, None, "linear")


class _Call:
    """The checked arguments of a call."""

    def __init__(
        self, caller: str, x: Any, offsets: Any, block: int, scale: Any, pad: Any, random: Random | None
    ) -> None:
        self.random = random
        self.caller, self.given, self.library = caller, (x, offsets, scale), libraries.library_of(x)
        (self.x, self.src), self.offsets = source_array(x, caller), as_array(offsets, f"{caller}: offsets")
        check_constant(x, caller)
        self.device = device_index(self.x)
        self.engine = engines.of(self.device)
        if self.x.ndim != 2:
            raise ValueError(f"{caller}: x has shape {tuple(self.x.shape)}; expected a matrix")
        self.rows, self.columns = self.x.shape
        if self.columns == 0 or self.columns % block:
            raise ValueError(f"{caller}: rows of {self.columns} elements are no multiple of {block}")
        if self.columns > _MOST_COLUMNS:
            raise ValueError(f"{caller}: rows of {self.columns} elements are longer than {_MOST_COLUMNS}")
        if namespace(self.offsets) is None or self.offsets.dtype not in (np.int32, np.int64):
            raise TypeError(f"{caller}: offsets has dtype {self.offsets.dtype}; expected INT32 or INT64")
        if self.offsets.ndim != 1 or not 1 <= self.offsets.size <= _MOST_GROUPS:
            raise ValueError(f"{caller}: offsets has shape {self.offsets.shape}; expected 1 to {_MOST_GROUPS} ends")
        if device_index(self.offsets) != self.device:
            raise ValueError(f"{caller}: offsets is on {devices.name(device_index(self.offsets))}, and x is not")
        self.pad = integer(pad, f"{caller}: pad")
        if self.pad < 1 or self.pad & (self.pad - 1) or self.pad > 1 << 16:
            raise ValueError(f"{caller}: pad={pad} must be a power of two up to 65536")
        groups = self.offsets.size
        self.result_rows = (self.rows + groups * (self.pad - 1)) // self.pad * self.pad
        if random is not None and random.offset + self.x.size > 1 << 64:
            raise ValueError(f"{caller}: offset={random.offset} and the {self.x.size} elements of x are beyond 2^64")
        if max(self.rows, self.result_rows) > np.iinfo(self.offsets.dtype).max:
            raise ValueError(f"{caller}: {self.result_rows} rows are more than offsets of {self.offsets.dtype} reach")
        if max(self.rows, self.result_rows) > _MOST_ROWS:
            raise ValueError(f"{caller}: {self.result_rows} rows are more than {_MOST_ROWS}")
        if scale is not None and namespace(scale) is None and libraries.find(scale) is None:
            scale = positive(scale, f"{caller}: scale")
        if scale is not None and not isinstance(scale, float):
            scale = as_array(scale, f"{caller}: scale")
            if scale.dtype != np.float32 or scale.size not in (1, groups) or device_index(scale) != self.device:
                raise ValueError(
                    f"{caller}: scale has dtype {scale.dtype} and shape {scale.shape}, on "
                    f"{devices.name(device_index(scale))}; expected a number, or FLOAT for all or for each group, "
                    f"shape ({groups},), on {devices.name(self.device)}"
                )
            scale = scale.reshape(-1)
        self.scale = 1.0 if scale is None else scale

    def run(
        self,
        out: Grouped | None,
        element: DType,
        scales: tuple[DType, tuple[int, ...]] | None,
        rule: CastRule,
        format: Format | None,
        layout: ScaleLayout,
    ) -> Grouped:
        """Fill new arrays, or the arrays of `out`."""
        if not (out is None or isinstance(out, Grouped)):
            raise TypeError(f"{self.caller}: out is {type(out).__name__}; expected the result of an earlier call")
        kinds = {
            "data": (element, (self.result_rows, self.columns)),
            "scales": scales,
            "offsets": (dtype(self.offsets.dtype), self.offsets.shape),
            "valid": (dtype("INT32"), ()),
        }
        owned = () if out is None else tuple(part for part in out if part is not None)
        with streams.visit(*self.given, *(streams.Owned(p, None) if isinstance(p, PackedArray) else p for p in owned)):
            parts = [
                None if kind is None else self._part(out, name, format is not None, *kind)
                for name, kind in kinds.items()
            ]
            if out is not None:
                self._check_memory(parts)
            self.engine.pick(self._on_host, self._on_device)(parts, rule, format, layout)
            if out is not None:
                return out
            return Grouped(*(p if isinstance(p, PackedArray | None) else of_library(p, self.library) for p in parts))

    def _part(self, out: Grouped | None, name: str, packs: bool, kind: DType, shape: tuple[int, ...]) -> Any:
        """A new array, packed as `quantize` has it if `packs`, or the checked one of `out`."""
        if out is None:
            return self.engine.empty(shape, kind, packs)
        given, caller = getattr(out, name), f"{self.caller}: out.{name}"
        if isinstance(given, PackedArray) or namespace(given) is not None:
            part = as_array(given, caller)
        else:
            library = libraries.find(given)
            if library is None:
                raise TypeError(f"{caller} is {type(given).__name__}; expected an array that can be written")
            part = library.take(given, caller, writing=True)
        if dtype(part.dtype) is not kind or tuple(part.shape) != shape or device_index(part) != self.device:
            raise ValueError(f"{self.caller}: out.{name} is not {kind.name} of shape {shape} on the side of x")
        if kind.packed and self.engine.packs and not isinstance(part, PackedArray):
            raise ValueError(f"{self.caller}: out.{name} has bytes of their own for its codes; expected a PackedArray")
        return part

    def _check_memory(self, parts: list[Any]) -> None:
        """ValueError for parts of `out` that cannot be written, or share memory with each other or with sources."""
        written = [
            Place(f"out.{name}", part) for name, part in zip(Grouped._fields, parts, strict=True) if part is not None
        ]
        read = [Place("x", self.x), Place("offsets", self.offsets)]
        read += [] if isinstance(self.scale, float) else [Place("scale", self.scale)]
        check_written(written, read, self.caller)

    def _on_host(self, parts: list[Any], rule: CastRule, format: Format | None, layout: ScaleLayout) -> None:
        grouped_on_host.fill(parts, self.x, self.offsets, rule.dst, format, self.scale, self.pad, layout, self.random)

    def _on_device(self, parts: list[Any], rule: CastRule, format: Format | None, layout: ScaleLayout) -> None:
        on_gpu = cuda.grouped
        assert self.device is not None
        with kernels.driver.driver().on(self.device):
            x = on_gpu.dense("x", self.x, self.caller, VECTOR)
            offsets, scale = on_gpu.dense("offsets", self.offsets, self.caller), self.scale
            if not isinstance(scale, float):
                scale = on_gpu.dense("scale", scale, self.caller)
            wanted = {name: part for name, part in zip(Grouped._fields, parts, strict=True) if part is not None}
            written = {
                name: on_gpu.target(f"out.{name}", part, self.caller, VECTOR if name == "data" else 0)
                for name, part in wanted.items()
            }
            given = on_gpu.grouped_arguments(
                offsets, scale, written.get("scales"), written["offsets"], written["valid"], self.rows, self.columns,
                self.result_rows, self.pad, *(self.random or (0, 0)),
            )  # fmt: skip
            kernel = on_gpu.grouped_kernel(rule, format, self.random is not None, layout)
            on_gpu.run(kernel, x, written["data"], self.result_rows, given, self.device)
            cuda.memory.hand_over(written, wanted)
