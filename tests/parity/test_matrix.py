# SPDX-License-Identifier: Apache-2.0
"""Every implementation of Cast against one oracle: all rules by their codes; calls by layout and by what they ask for.

The oracle of codes is exact arithmetic (tests/exact.py), which judges the reference; the reference judges the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
import pytest

import exact
import gpucast
from codes import EXTRA, HOST_LOOPS, assert_codes, assert_same, by_rule, every_code, random_codes, unaligned
from engines import by_kernels, by_module, by_reference
from fused_cases import CASES, RANDOM, in_use, largest, oracle
from gpucast import PackedArray
from gpucast.casting import plans
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.parity import host_build
from gpucast.parity.cases import NUMERIC, rules
from gpucast.reference import exact_cast
from hard_codes import every_or_hard, hard_codes
from host_driver import DEVICES, HostDriver, both_shapes, elements, on_gpu, upload

# ---- codes: every rule of every pair ----


def judged(src: DType, dst: DType, exhaustive: bool) -> np.ndarray:
    """Codes for exact arithmetic, which takes its time: all of 8 bits, and hard ones of the wider."""
    if src.bits <= 8:
        return every_code(src)
    return hard_codes(src, dst, (1 << 16) if exhaustive else 2500 if src.bits == 16 else 250)


def compared(src: DType, dst: DType, exhaustive: bool) -> np.ndarray:
    """Codes for the reference, which is quicker: all of 16 bits or fewer."""
    return every_or_hard(src, dst, 500_000 if exhaustive else 3000)


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_reference_and_host(src: DType, exhaustive: bool) -> None:
    for dst in NUMERIC:
        codes = judged(src, dst, exhaustive)
        decoded = [exact.decode(src, code) for code in codes.tolist()] if src.bits > 16 and src is not dst else None
        for rule in (*rules(src, dst), *by_rule(src, dst, exhaustive)):
            every = exact.cast_codes(codes, rule) if decoded is None else [exact.cast(one, rule) for one in decoded]
            model = np.array(every, dtype=dst.code_numpy)
            for name, found in (("reference", by_reference(codes, rule)), ("host", by_module(codes, rule))):
                assert_codes(found, model, (name, rule), codes)


def is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits <= 8


#: Architectures, and the pairs for which they have instructions that others have not.
ARCHITECTURES = {
    75: lambda src, dst: src.bits == 16 and is_narrow(dst) and dst.family == "float",
    80: lambda src, dst: src.bits == 16 and is_narrow(dst) and dst.family == "float",
    90: lambda src, dst: True,
    100: lambda src, dst: is_narrow(src) or is_narrow(dst),
}


def some_rules(src: DType, dst: DType, share: int) -> list[CastRule]:
    """The own rule of a pair, and of the others one in `share`, by turns: each pair has others. All are compared with
    --exhaustive, and by `gpucast parity --backend kernels --full`."""
    first = sum((*NUMERIC, *EXTRA).index(one) for one in (src, dst))
    return [rule for turn, rule in enumerate(rules(src, dst), first) if turn == first or turn % share == 0]


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_host_and_kernels(src: DType, exhaustive: bool) -> None:
    """In one test, because the reference takes as long as all of them."""
    built: dict[int, dict[CastRule, host_build.HostKernels]] = {}
    for arch, has in ARCHITECTURES.items():
        share = 1 if exhaustive else 2 if arch == 90 else 3
        group = [rule for dst in NUMERIC if has(src, dst) for rule in some_rules(src, dst, share)]
        group += [rule for dst in NUMERIC if arch == 90 for rule in by_rule(src, dst, exhaustive)]
        built[arch] = dict.fromkeys(group, host_build.build(group, optimize=exhaustive, arch=arch))
    for rule in dict.fromkeys(itertools.chain(*built.values())):
        codes = compared(src, rule.dst, exhaustive)
        wanted = by_reference(codes, rule)
        assert_codes(by_module(codes, rule), wanted, ("host", rule), codes)
        for arch, kernels in built.items():
            if rule in kernels:
                assert_codes(by_kernels(kernels[rule], rule, codes), wanted, (arch, rule), codes)


@pytest.mark.parametrize("row", EXTRA, ids=str)
def test_kernels_of_a_type_that_is_one_row(row: DType, exhaustive: bool) -> None:
    """From the row of a type that the table does not have."""
    pairs = [pair for other in (*NUMERIC, row) for pair in ((row, other), (other, row))]
    group = [rule for pair in pairs for rule in some_rules(*pair, 1 if exhaustive else 2)]
    kernels = host_build.build(dict.fromkeys(group), optimize=False)
    for rule in group:
        codes = compared(rule.src, rule.dst, False) if rule.src.bits <= 16 else random_codes(rule.src, 5000, 28)
        assert_codes(by_kernels(kernels, rule, codes), by_reference(codes, rule), rule, codes)


def test_hard_codes_include_double_rounding() -> None:
    """The samples hold cases that a detour through float32 gets wrong; else wide sources would prove little."""
    x = hard_codes(dtype("DOUBLE"), dtype("BFLOAT16"), 3000).view(np.float64)
    x = x[np.isfinite(x) & (np.abs(x) < 1e38)]
    with np.errstate(under="ignore"):
        twice = x.astype(np.float32).astype(dtype("BFLOAT16").numpy)
    assert np.count_nonzero(twice.view(np.uint16) != exact_cast.cast(x, "BFLOAT16").view(np.uint16)) > 100


# ---- calls: layouts, out, scale, amax, seed, many ----

FLOAT = dtype("FLOAT")

#: Views of a matrix, of the host's as of a device's.
LAYOUTS = {
    "whole": lambda a: a,
    "columns": lambda a: a[:, ::2],
    "transposed": lambda a: a.T,
    "rows": lambda a: a[1:4],
    "reversed": lambda a: a[::-1, ::-1],
    "behind the first": lambda a: a.reshape(-1)[1:],
    "three dimensions": lambda a: a.reshape(2, -1, a.shape[1]).transpose(1, 2, 0),
    "equal rows": lambda a: (np if isinstance(a, np.ndarray) else cupy).broadcast_to(a[1], a.shape),
    "one": lambda a: a[2:3, 3:4].reshape(()),
    "none": lambda a: a[:0],
}


@pytest.mark.parametrize(("src", "dst"), HOST_LOOPS, ids=str)
def test_layouts_on_the_host(src: DType, dst: DType) -> None:
    for shape in ((6, 8), (60, 331)):
        base = random_codes(src, shape, 5).view(src.numpy)
        for take in LAYOUTS.values():
            for view, x in sources(base, src, take, False):
                wanted = oracle(x, dst)
                y = gpucast.cast(view, dst)
                assert_same(elements(y), wanted)
                for out in outs(y):
                    assert_same(elements(gpucast.cast(view, dst, out=out)), wanted)


@pytest.fixture(scope="module")
def plain() -> None:
    HostDriver().prepare(both_shapes(resolve(src, dst) for src, dst, _, _ in CASES))


@pytest.fixture(params=DEVICES)
def driver(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "gpu":
        with on_gpu():
            yield None
        return
    request.getfixturevalue("plain")
    with in_use() as ready:
        yield ready


def outs(y: Any) -> Iterator[Any]:
    """Arrays that can take a result: one like it, and one with gaps."""
    yield gpucast.empty_like(y)
    if not isinstance(y, PackedArray) and y.ndim:
        room = np.zeros((*y.shape[:-1], 2 * y.shape[-1]), y.dtype)
        yield (room if isinstance(y, np.ndarray) else upload(room))[..., ::-2]


def sources(base: np.ndarray, src: DType, take: Any, on_device: bool) -> Iterator[tuple[Any, np.ndarray]]:
    """The view of an array, with its elements; at odd addresses; of packed types the packed array, too."""
    x = take(base)
    yield (take(upload(base, offset=base.itemsize)) if on_device else x), x
    if src.packed:
        packed = PackedArray.pack(x)
        yield (PackedArray(upload(packed.data, offset=1), src, x.shape) if on_device else packed), x
    if not on_device and src.bits > 8:
        yield unaligned(x), x
        if src.numpy.kind in "if":
            yield x.astype(src.numpy.newbyteorder(">")), x


def check_many(view: Any, x: np.ndarray, src: DType, dst: DType, scale: Any, attributes: dict[str, Any]) -> None:
    """Two arrays in one call: the random words of the second go on where those of the first end."""
    finite = np.ones(1, bool)
    for _ in range(2):
        found = gpucast.cast_many([view, view], dst, scale=scale, finite=finite, **attributes)
    wanted = oracle(np.concatenate([x.reshape(-1), x.reshape(-1)]), dst, scale, **attributes)
    for y, part in zip(found, np.split(wanted, 2), strict=True):
        assert_same(elements(y), part.reshape(x.shape))
    assert finite[0] == np.isfinite(exact_cast.cast(x, "DOUBLE")).all()


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_calls(case: Any, fused: bool, driver: HostDriver | None) -> None:
    """The first call and later ones, which go by its plan, into new arrays and into given ones."""
    src, dst, ops, random = case
    attributes: dict[str, Any] = {"rounding": "stochastic", **RANDOM._asdict()} if fused and random else {}
    number = {"none": None, "narrow": 0.375, "wide": 0.1}[ops.scaling] if fused else None
    for shape, places in (((6, 8), (False, True)), ((60, 331), (False,))):
        base = random_codes(src, shape, 3).view(src.numpy)
        for on_device in places:
            # A scale in an array is another argument of the same launches: the small arrays try it.
            ways = (False, True) if fused and base.size < 100 else (False,)
            for take, given in itertools.product(LAYOUTS.values(), ways):
                keywords = dict(attributes)
                if number is not None:
                    scale = np.array([number], np.float32 if ops.scaling == "narrow" else np.float64)
                    keywords["scale"] = (upload(scale) if on_device else scale) if given else number
                for view, x in sources(base, src, take, on_device):
                    wanted = oracle(x, dst, number, **attributes)
                    amax = np.zeros((), np.float32)
                    if fused and ops.amax:
                        keywords["amax"] = amax = upload(amax) if on_device else amax
                    plans.forget()
                    results = [gpucast.cast(view, dst, **keywords) for _ in range(2)]
                    if not isinstance(results[0], PackedArray):
                        # A packed array has no order but that of rows.
                        like = np.empty(x.shape) if isinstance(view, PackedArray) else x if on_device else view
                        assert results[0].strides == results[1].strides == np.empty_like(like, dst.numpy).strides
                    for out in outs(results[0]):
                        results += [gpucast.cast(view, dst, **keywords, out=out) for _ in range(2)]
                        assert results[-1] is results[-2] is out
                    for y in results:
                        packed = dst.packed and (on_device or isinstance(view, PackedArray))
                        assert isinstance(y, PackedArray) == packed
                        assert_same(elements(y), wanted)
                    if fused and ops.amax:
                        assert_same(elements(amax), largest(x, src))
                    if not on_device:
                        check_many(view, x, src, dst, number, attributes)


@pytest.mark.parametrize(
    ("src", "dst", "rounding", "scale"),
    [
        ("FLOAT", "FLOAT8E4M3FN", "upward", None),
        ("FLOAT", "FLOAT16", "toward_zero", 0.1),
        ("INT64", "BFLOAT16", "odd", None),
        ("BFLOAT16", "FLOAT6E2M3", "downward", 0.375),
        ("DOUBLE", "FLOAT", "odd", 0.1),
        ("FLOAT16", "FLOAT4E2M1", "upward", None),
    ],
)
def test_calls_that_round_in_a_direction(src: str, dst: str, rounding: Any, scale: float | None) -> None:
    base = random_codes(dtype(src), (24, 37), 7).view(dtype(src).numpy)
    wanted = oracle(base, dtype(dst), scale, rounding=rounding)
    with in_use():
        for x, name in itertools.product((base, upload(base)), ("whole", "columns", "transposed")):
            for _ in range(2):
                found = gpucast.cast(LAYOUTS[name](x), dst, rounding=rounding, scale=scale)
                assert_same(elements(found), LAYOUTS[name](wanted))


@pytest.mark.parametrize("src", DTYPES, ids=str)
def test_every_pair(src: DType) -> None:
    x = exact_cast.cast(np.array([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]), src)
    for dst in DTYPES:
        for shape in ((7,), (7, 1)):
            assert_same(gpucast.cast(x.reshape(shape), dst), exact_cast.cast(x.reshape(shape), dst))
        if src.packed:
            result = gpucast.cast(PackedArray.pack(x), dst)
            assert isinstance(result, PackedArray) == dst.packed
            assert_same(elements(result), exact_cast.cast(x, dst))
