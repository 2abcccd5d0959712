# SPDX-License-Identifier: Apache-2.0
"""The public calls whose kernels `gpucast.warmup` compiles, by what it is asked for.

Each function makes its calls on arrays of a `Recorder`, and leaves their results alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from gpucast.casting.cast import cast
from gpucast.casting.cast_many import cast_many
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import has_stochastic
from gpucast.mixed import DelayedScaling, DynamicLossScale, select_tree
from gpucast.quantization import recipes
from gpucast.quantization.formats import SOURCES, Format
from gpucast.quantization.grouped import cast_grouped, check_grouped, quantize_grouped
from gpucast.quantization.hadamard_array import hadamard
from gpucast.quantization.quantize_array import quantize
from gpucast.quantization.quantized import check_layout
from gpucast.quantization.scale_orders import SCALE_LAYOUTS, ScaleLayout, order
from gpucast.warmup.recording import Recorder
from gpucast.warmup.request import WarmupRequest

#: A matrix of whole blocks of every format, also transposed; one whose rows and columns end inside a block; many far
#: smaller than a tile.
_MATRIX, _RAGGED, _SMALL = (1024, 1024), (1023, 1021), (512, 5, 7)
#: A number that FLOAT holds, and one that only DOUBLE does: products with them have kernels of their own.
_SCALES = (0.5, 0.1)
#: Arrays of a tree.
_FEW = 2
_FLOAT = dtype("FLOAT")
#: The usual types of weights, activations and gradients.
_USUAL = tuple(map(dtype, ("FLOAT", "FLOAT16", "BFLOAT16")))

#: The keywords that quantizing and casts have in common: rounding and seed.
Keywords = Mapping[str, Any]


def make(request: WarmupRequest, recorder: Recorder) -> None:
    """The calls of a request. TypeError or ValueError as the calls raise them, under their names."""
    names, lengths, pairs = _listed(request.quantize), _listed(request.hadamard), request.pairs
    if pairs is None:
        pairs = () if names or lengths or request.mixed else every_pair()
    for pair in pairs:
        _make_casts(pair, request, recorder)
    if request.row_scaled and not names:
        raise ValueError("warmup: row_scaled=True is for formats such as nvfp4; quantize= names none")
    rounding = _with_seed({"rounding": request.attributes.get("rounding")})
    for src in _USUAL:
        for length in lengths:
            transforms(recorder, src, length)
        for name in names:
            format = recipes.find(name, "warmup")
            if not recipes.takes(name, format, src):
                continue
            quantized(recorder, name, format, src, rounding)
            for length in lengths:
                transformed(recorder, name, format, src, rounding, length)
            if request.grouped:
                grouped(recorder, name, format, src, rounding)
            if request.row_scaled:
                row_scaled(recorder, name, format, src, rounding)
        if request.mixed:
            mixed(recorder, src)


def every_pair() -> list[tuple[DType, DType]]:
    """All pairs of types that have kernels."""
    numeric = [kind for kind in DTYPES if kind.family != "string"]
    return [(src, dst) for src in numeric for dst in numeric]


def _make_casts(pair: Any, request: WarmupRequest, recorder: Recorder) -> None:
    """The casts of one pair."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"warmup: pairs has {pair!r}; expected (source, destination), such as ('FLOAT', 'BFLOAT16')")
    src, dst = (dtype(name, caller="warmup: ") for name in pair)
    if "string" in (src.family, dst.family):
        raise ValueError(f"warmup: {src.name} to {dst.name} has no kernel; STRING is cast on the host")
    attributes = dict(request.attributes)
    if request.grouped:
        grouped_casts(recorder, src, dst, _with_seed({"rounding": STOCHASTIC} if _is_random(attributes) else {}))
    # (with a scale, with amax, with stochastic rounding)
    asked = {(request.scale, request.amax, False)}
    if request.fused:
        asked |= {(True, False, False), (False, True, False), (True, True, False)}
        asked |= {(False, False, True)} if has_stochastic(dst) else set()
    for scale, amax, random in sorted(asked):
        given = _with_seed({**attributes, **({"rounding": STOCHASTIC} if random else {})})
        casts(recorder, src, dst, given, scale=scale, amax=amax, transposed=request.transposed, many=request.many)


def _is_random(keywords: Keywords) -> bool:
    return keywords.get("rounding") == STOCHASTIC


def _with_seed(keywords: Keywords) -> Keywords:
    """Keywords of a call, with a seed where it rounds at random; all seeds share their kernels."""
    return {**keywords, "seed": 0} if _is_random(keywords) else keywords


def _listed(one_or_several: Any) -> list[Any]:
    return [one_or_several] if isinstance(one_or_several, (str, int)) else list(one_or_several)


def casts(
    recorder: Recorder,
    src: DType,
    dst: DType,
    keywords: Keywords,
    *,
    scale: bool = False,
    amax: bool = False,
    transposed: bool = False,
    many: bool = False,
) -> None:
    """Casts of contiguous arrays and of others; `transposed` and `many` add calls, `scale` and `amax` keywords."""
    for packed, number in itertools.product((False, True) if src.packed else (False,), _SCALES if scale else (None,)):
        given = {**keywords, "scale": number, "amax": recorder.array((1,), _FLOAT) if amax else None}
        x = recorder.array(_MATRIX, src, packed)
        cast(x, dst, **given)
        if not packed:
            cast(x[:, ::2], dst, **given)
        elif not dst.packed:
            # A packed array has no strides, but its result may have.
            cast(x, dst, out=recorder.array((*_MATRIX, 2), dst)[..., 0], **given)
        if transposed and not (packed or dst.packed or scale or amax):
            cast(x.T, dst, out=recorder.array(_MATRIX, dst), **given)
        if many and not amax:
            _trees(recorder, x, dst, {**keywords, "scale": number})


def _trees(recorder: Recorder, x: Any, dst: DType, keywords: Keywords) -> None:
    """Trees of arrays of one type. With a scale also checked for being finite, as loss scales need it."""
    for lists in _lists(recorder):
        with lists:
            cast_many([x] * _FEW, dst, **keywords)
    if keywords["scale"] is None or not dtype(x.dtype).has_nan:
        return
    finite = recorder.array((1,), "BOOL")
    for lists in _lists(recorder):
        with lists:
            cast_many([x] * _FEW, dst, finite=finite, **keywords)
    # No type with NaN is packed.
    for alone in (x, x[:, ::2]):
        cast_many([alone], dst, finite=finite, **keywords)


def _lists(recorder: Recorder) -> tuple[contextlib.AbstractContextManager[None], ...]:
    """Where a list of arrays is a short one, and where it is a long one."""
    return contextlib.nullcontext(), recorder.long_lists()


def grouped_casts(recorder: Recorder, src: DType, dst: DType, keywords: Keywords) -> None:
    """Casts of groups of rows, for the types that they take."""
    if src in SOURCES and dst.is_float:
        cast_grouped(recorder.array(_MATRIX, src), _ends(recorder), dst, scale=1.0, **keywords)


def quantized(recorder: Recorder, asked: Any, format: Format, src: DType, keywords: Keywords) -> None:
    """Arrays that are quantized along the last axis, plain, transposed or both, in all orders of scales, and back."""
    for shape in _shapes(format):
        x = recorder.array(shape, src)
        layouts = _layouts(format) if shape is _MATRIX else ("linear",)
        for layout, transpose in itertools.product(layouts, (False, True, "both")):
            _there_and_back(recorder, x, asked, {**keywords, "scale_layout": layout, "transpose": transpose})
    x = recorder.array(_MATRIX, src)
    if format.global_scale:
        quantize(x, asked, amax=recorder.array((1,), _FLOAT), **keywords)
    q = quantize(x, asked, **keywords)
    for to in dict.fromkeys((src, _FLOAT)):
        q.dequantize(to, out=_shifted(recorder, _MATRIX, to))
    for layout in _layouts(format):
        q.with_layout(layout)


def _shapes(format: Format) -> tuple[tuple[int, ...], ...]:
    """Shapes whose kernels differ. A choice between two scales needs whole blocks."""
    return (_MATRIX,) if format.rule == "4over6" else (_MATRIX, _RAGGED, _SMALL)


def _there_and_back(recorder: Recorder, x: Any, asked: Any, keywords: Keywords, **back: Any) -> None:
    made = quantize(x, asked, **keywords)
    for q in made if isinstance(made, tuple) else (made,):
        rows = None if q.global_scale is None else q.global_scale.shape
        for to in dict.fromkeys((dtype(x.dtype), _FLOAT)):
            if recorder.is_new((q.format, q.shape, q.axis, q.scale_layout, rows, to, *back.items())):
                q.dequantize(to, **back)


def _layouts(format: Format) -> Iterator[ScaleLayout]:
    for layout in SCALE_LAYOUTS:
        with contextlib.suppress(ValueError):
            check_layout(layout, _MATRIX, 1, format, "")
            yield layout


def grouped(recorder: Recorder, asked: Any, format: Format, src: DType, keywords: Keywords) -> None:
    """Groups of rows that are quantized."""
    check_grouped(format, "warmup")
    given = {**keywords, "scale": 1.0 if format.global_scale else None}
    for layout in SCALE_LAYOUTS:
        pad = order(layout).height
        # Not every format has every order of groups.
        with contextlib.suppress(ValueError):
            x, ends = recorder.array(_MATRIX, src), _ends(recorder)
            quantize_grouped(x, ends, asked, pad=pad, scale_layout=layout, **given)


def row_scaled(recorder: Recorder, asked: Any, format: Format, src: DType, keywords: Keywords) -> None:
    """Matrices with a global scale for each row, from the largest magnitude of each, and back."""
    for shape in _shapes(format):
        x, amax = recorder.array(shape, src), recorder.array(shape[:-1], _FLOAT)
        for layout in _layouts(format) if shape is _MATRIX else ("linear",):
            given = {**keywords, "amax": amax, "scale_layout": layout}
            _there_and_back(recorder, x, asked, given)
            if shape is _MATRIX:
                q = quantize(_shifted(recorder, shape, src), asked, **given)
                for to in dict.fromkeys((src, _FLOAT)):
                    q.dequantize(to, out=_shifted(recorder, shape, to))


def transforms(recorder: Recorder, src: DType, length: int) -> None:
    """Hadamard transforms to FLOAT, and back to FLOAT and to the type."""
    for axis in (0, 1):
        y = hadamard(recorder.array(_MATRIX, src), length, axis=axis)
        for to in dict.fromkeys((src, _FLOAT)):
            hadamard(y, length, axis=axis, inverse=True, to=to)


def transformed(recorder: Recorder, asked: Any, format: Format, src: DType, keywords: Keywords, length: int) -> None:
    """Matrices that are transformed along the last axis and quantized, plain, transposed or both, and back."""
    x = recorder.array(_MATRIX, src)
    for layout in _layouts(format):
        own = {**keywords, "scale_layout": layout}
        for transpose in (False, True, "both"):
            _there_and_back(recorder, x, asked, {**own, "hadamard": length, "transpose": transpose}, hadamard=length)
        for pair in ((None, length), (length, None)):
            quantize(x, asked, hadamard=pair, transpose="both", **own)


def mixed(recorder: Recorder, src: DType) -> None:
    """A step with loss scales and delayed scales for losses and gradients of a type, in trees of that type."""
    x, scale, delayed = recorder.array(_MATRIX, src), DynamicLossScale(), DelayedScaling("FLOAT8E4M3FN")
    for gradients in ([x], [x[:, ::2]], [x] * _FEW):
        for lists in _lists(recorder):
            with lists:
                scale.scale(gradients[0])
                new, finite = scale.unscale(gradients)
                scale.adjust(finite)
                select_tree(finite, new, new)
    cast(scale.adjust(True).loss_scale, _FLOAT)
    delayed.cast(x)
    delayed.update()


def _shifted(recorder: Recorder, shape: tuple[int, ...], kind: DType) -> Any:
    """An array at an address that no vector has."""
    return recorder.array((math.prod(shape) + 1,), kind)[1:].reshape(shape)


def _ends(recorder: Recorder) -> Any:
    return recorder.array((4,), "INT32")
