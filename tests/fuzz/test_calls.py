# SPDX-License-Identifier: Apache-2.0
"""Public calls with any arrays and keywords: the bits of the reference, or a documented error that changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import gpucast
from codes import assert_same
from fused_cases import product
from fuzz import strategies
from gpucast import layers, mixed, reference
from gpucast.core.dtypes import DTYPES, DType
from gpucast.quantization import exact_quantize
from gpucast.quantization.formats import FORMATS
from processor_modes import sometimes

NDArray = np.ndarray[Any, Any]

#: What `cast` documents.
DOCUMENTED = (TypeError, ValueError, OverflowError, RuntimeError)
TYPES = st.sampled_from(DTYPES)


def image(x: Any) -> Any:
    """What is in an array, to see that it stays."""
    return x.tolist() if x.dtype == object else x.tobytes()


@contextlib.contextmanager
def untouched(*arrays: NDArray) -> Iterator[None]:
    before = [image(x) for x in arrays]
    yield
    assert [image(x) for x in arrays] == before


def outcome(function: Any, *args: Any, **keywords: Any) -> Any:
    """What it returns, or the documented error that it raises."""
    try:
        # The reference is asked under the default modes: it is what calls under others are compared with.
        if _is_reference(function):
            return function(*args, **keywords)
        with sometimes():
            return function(*args, **keywords)
    except DOCUMENTED as error:
        assert str(error)
        return error


def _is_reference(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("gpucast.reference")


def check_same(got: Any, wanted: Any, dst: DType) -> None:
    """The same bits, or errors of the same type."""
    if isinstance(wanted, Exception) or isinstance(got, Exception):
        assert type(got) is type(wanted), (got, wanted)
    else:
        assert_same(got, wanted, dst)


@given(strategies.arrays(), TYPES, strategies.ATTRIBUTES)
def test_a_cast_is_the_references(x: NDArray, to: DType, attributes: dict[str, Any]) -> None:
    with untouched(x):
        wanted = outcome(reference.cast, x, to, **attributes)
        check_same(outcome(gpucast.cast, x, to, **attributes), wanted, to)
        # Once more, on the path of a call that was made before.
        check_same(outcome(gpucast.cast, x, to, **attributes), wanted, to)


@given(strategies.arrays(), TYPES, strategies.ATTRIBUTES, TYPES, st.none() | strategies.SHAPES, st.integers(0, 7))
def test_out_is_written_whole_or_not_at_all(
    x: NDArray, to: DType, attributes: dict[str, Any], kind: DType, shape: Any, layout: int
) -> None:
    """An `out` that fits or does not: of another type or shape, read-only, over x itself."""
    fits = layout % 2 == 0
    out = strategies.codes(to if fits else kind, x.shape if shape is None else shape, 1)
    if out.ndim:
        out = strategies.LAYOUTS[layout](out)
    with untouched(x):
        before = image(out)
        got = outcome(gpucast.cast, x, to, out=out, **attributes)
        if isinstance(got, Exception):
            assert image(out) == before
            return
        assert got is out
        assert_same(out.astype(out.dtype.newbyteorder("="), order="C"), reference.cast(x, to, **attributes), to)


@given(
    strategies.arrays(strategies.NUMERIC), st.sampled_from(strategies.NUMERIC),
    st.sampled_from([0.0, 0.5, 1.0, 3.7, 1e-30, 1e300, 2**-1074]), st.booleans(),
)  # fmt: skip
def test_scale_and_amax(x: NDArray, to: DType, scale: float, saturate: bool) -> None:
    amax = np.zeros(1, np.float32)
    with untouched(x), np.errstate(all="ignore"):
        with sometimes():
            got = gpucast.cast(x, to, scale=scale, amax=amax, saturate=saturate)
        assert_same(got, reference.cast(product(x, scale), to, saturate=saturate), to)
        wide = reference.cast(x, "DOUBLE")
        largest = np.float32(np.abs(wide).max(initial=0))
        assert np.isnan(wide).any() == np.isnan(amax[0]) and (np.isnan(amax[0]) or amax[0] == largest)


@given(
    st.recursive(
        st.none() | strategies.arrays(),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=2), part, max_size=3),
        max_leaves=5,
    ),
    TYPES,
    strategies.ATTRIBUTES,
    st.booleans(),
)
def test_cast_many_is_many_casts(arrays: Any, to: DType, attributes: dict[str, Any], has_out: bool) -> None:
    leaves = list(_leaves(arrays))
    offset, wanted = attributes.get("offset", 0), []
    for x in leaves:
        wanted.append(outcome(_cast_at, x, to, attributes, offset))
        offset = offset + x.size if attributes.get("seed") is not None else offset
    failed = next((one for one in wanted if isinstance(one, Exception)), None)
    outs = [strategies.codes(to, x.shape, 3) for x in leaves]
    more = {"out": _like(arrays, iter(outs))} if has_out else {}
    before = [image(x) for x in outs]
    with untouched(*leaves):
        got = outcome(gpucast.cast_many, arrays, to, **attributes, **more)
    if isinstance(got, Exception):
        assert [image(x) for x in outs] == before
        assert failed is not None or offset > 2**64 or not leaves, got
    elif failed is None:
        for one, other in zip(_leaves(got), wanted, strict=True):
            assert_same(one, other, to)
    else:
        raise AssertionError(f"cast_many went well, and cast raised {failed!r}")


def _cast_at(x: NDArray, to: DType, attributes: dict[str, Any], offset: int) -> NDArray:
    """The cast of an array whose random words begin at an offset, which may be beyond those that a cast takes."""
    before = max(0, offset - (2**64 - 1))
    if not before:
        return gpucast.cast(x, to, **attributes | {"offset": offset})
    longer = np.concatenate([np.zeros(before, x.dtype), x.ravel()])
    return gpucast.cast(longer, to, **attributes | {"offset": 2**64 - 1})[before:].reshape(x.shape)


def _leaves(tree: Any) -> Iterator[NDArray]:
    if isinstance(tree, (list, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(part)
    elif tree is not None:
        yield tree


def _like(tree: Any, leaves: Iterator[NDArray]) -> Any:
    if isinstance(tree, dict):
        return {name: _like(part, leaves) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_like(part, leaves) for part in tree]
    return None if tree is None else next(leaves)


@given(
    strategies.arrays(strategies.QUANTIZED, st.tuples(st.integers(0, 3), st.integers(0, 70))),
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from(strategies.QUANTIZED),
)
def test_quantize_is_the_references(x: NDArray, name: str, axis: int, to: DType) -> None:
    format = FORMATS[name]
    with untouched(x):
        got = outcome(gpucast.quantize, x, name, axis=axis)
        wanted = outcome(exact_quantize.quantize, np.ascontiguousarray(x), format, axis=axis)
    if isinstance(got, Exception) or isinstance(wanted, Exception):
        assert isinstance(got, Exception) and isinstance(wanted, Exception), (got, wanted)
        return
    parts = {key: part.get() if isinstance(part, gpucast.PackedArray) else part for key, part in got.parts().items()}
    for key, part in parts.items():
        assert image(np.asarray(part)) == image(np.asarray(getattr(wanted, key))), key
    back = exact_quantize.dequantize(wanted, format, to, axis=axis)
    assert image(outcome(gpucast.dequantize, got, to)) == image(back)


@given(strategies.arrays(), TYPES, st.sampled_from([1.0, 0.5, -3.0]))
def test_a_layer_goes_forward_and_back(x: NDArray, to: DType, coefficient: float) -> None:
    layer = layers.Cast(to, lda_coeff=coefficient)
    y = outcome(layer.forward, x)
    check_same(y, outcome(reference.cast, x, to), to)
    if isinstance(y, Exception):
        return
    with untouched(x, y):
        dx = outcome(layer.backward, y)
    if not isinstance(dx, Exception):
        assert dx.shape == x.shape and dx.dtype == x.dtype.newbyteorder("=")
        if coefficient == 1:
            assert_same(dx, reference.cast(y, gpucast.dtype(x.dtype)), gpucast.dtype(x.dtype))


@given(strategies.arrays(), st.sampled_from([dtype for dtype in DTYPES if dtype.packed]), TYPES)
def test_packed_arrays_hold_what_was_packed(x: NDArray, kind: DType, to: DType) -> None:
    codes = outcome(reference.cast, x, kind)
    if isinstance(codes, Exception):
        return
    packed = gpucast.PackedArray.pack(codes)
    assert_same(packed.get(), codes, kind)
    with sometimes():
        result = gpucast.cast(packed, to)
    result = result.get() if isinstance(result, gpucast.PackedArray) else result
    assert_same(result, reference.cast(codes, to), to)
    for index in range(len(codes)) if codes.ndim else ():
        assert_same(packed[index].get(), np.asarray(codes[index]), kind)


@given(st.lists(strategies.arrays(strategies.FLOATS), max_size=3), st.sampled_from([1.0, 2.0**15, 3.0]))
def test_loss_scales_scale_and_unscale(grads: list[NDArray], factor: float) -> None:
    scale = mixed.StaticLossScale(factor)
    with untouched(*grads), np.errstate(all="ignore"):
        with sometimes():
            (got, finite), scaled = scale.unscale(grads), scale.scale(grads, to="FLOAT")
        inverse = float(np.float32(1) / np.float32(factor))
        wide = [reference.cast(x, "DOUBLE") for x in grads]
        assert bool(finite) == all(np.isfinite(x).all() for x in wide)
        for x, y in zip(wide, got, strict=True):
            assert_same(y, reference.cast(x * inverse, "FLOAT"))
        for x, y in zip(wide, scaled, strict=True):
            assert_same(y, reference.cast(x * factor, "FLOAT"))


@given(strategies.arrays(), st.booleans(), strategies.SEEDS)
def test_select_tree_selects(x: NDArray, flag: bool, seed: int) -> None:
    other = strategies.codes(gpucast.dtype(x.dtype), x.shape, seed)
    out = strategies.codes(gpucast.dtype(x.dtype), x.shape, seed + 1)
    with untouched(x, other):
        new = np.ascontiguousarray(x).reshape(x.shape).astype(other.dtype)
        with sometimes():
            got = mixed.select_tree(flag, {"x": new}, {"x": other}, out={"x": out})
    assert got["x"] is out
    assert image(out) == image(gpucast.cast(new if flag else other, out.dtype))
