# SPDX-License-Identifier: Apache-2.0
"""One read of an array for blocks along any axis, transposed or both ways: the reference's bits, as host code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_quantization_device import compare, kinds

from gpucast.codegen.cast_kernel import SHAPES, KernelSource, kernel_source
from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import LENGTHS, SOURCES
from gpucast.core.rule import CastRule, resolve
from gpucast.quantization import Format, quantize
from gpucast.quantization.gpu.source import Kind, QuantizeSpec
from gpucast.quantization.gpu.tile_source import Run, TileSpec
from gpucast.reference import exact_quantize
from host_driver import HostDriver, installed, upload
from quantization_cases import ALL, LENGTH, matrix

#: How results may be asked for, and which runs of the array they need: in its own order and swapped.
WAYS: dict[tuple[int, bool | str], tuple[Run, Run]] = {
    (-1, False): ("along", "nothing"),
    (-2, False): ("down", "nothing"),
    (-1, True): ("nothing", "down"),
    (-2, True): ("nothing", "along"),
    (-1, "both"): ("along", "down"),
    (-2, "both"): ("down", "along"),
}
BOTH = ((-1, "both"), (-2, "both"))
#: A format and a source of every way through the kernels, and how it is asked for.
SOME: tuple[tuple[str, str, tuple[tuple[int, bool | str], ...]], ...] = (
    ("mxfp8e4m3", "FLOAT", tuple(WAYS)),
    ("mxfp4", "BFLOAT16", ((-2, False), (-1, True), (-1, "both"))),
    ("mxfp6e3m2", "FLOAT16", BOTH),
    ("nvfp4", "FLOAT", BOTH),
    ("float8e4m3fn_1x128", "BFLOAT16", BOTH),
    ("float8e4m3fn_128x128", "FLOAT", ((-1, False), (-1, True), (-1, "both"))),
    ("float8e5m2_tensor", "BFLOAT16", ((-1, True), (-1, "both"))),
    ("int4_zp_128", "FLOAT", BOTH[:1]),
    ("uint2_zp_32", "FLOAT", BOTH[:1]),
    ("int8_64", "DOUBLE", BOTH[:1]),
    ("mxfp6e2m3_even", "BFLOAT16", BOTH[:1]),
    ("int4_32_full_range", "FLOAT", BOTH[:1]),
    ("int2_128_no_clipping", "FLOAT", BOTH[1:]),
    ("int4_32_full_range_bfloat16", "BFLOAT16", BOTH[:1]),
)
STOCHASTIC = (("mxfp8e4m3", BOTH), ("mxfp6e3m2", ((-1, False), (-2, False))), ("nvfp4", BOTH[1:]))
GIVEN = (
    ("int8_64", (-1, False)), ("int8_64", (-2, False)), ("int8_64", (-1, "both")), ("float8e4m3fn_1x128", (-2, False)),
)  # fmt: skip
#: What else runs: the kind, the threads of a block, its elements.
PASSES: tuple[tuple[Kind, int, int], ...] = (("extremes", 32, 0), ("scales", 1, 0), ("elements", 1, 0))
BESIDE: tuple[tuple[str, str, tuple[tuple[Kind, int, int], ...]], ...] = (
    ("nvfp4", "FLOAT", (("top", 32, 0), ("global", 1, 0))),
    ("float8e5m2_tensor", "BFLOAT16", PASSES[:2]),
    ("int4_32", "FLOAT", PASSES),
    ("mxfp4", "FLOAT", PASSES),
    ("mxfp8e4m3", "FLOAT", (("extremes", 1, 0), *PASSES, ("rows", 1, 32))),
)


def tiles(
    rule: CastRule, format: Format, way: tuple[int, bool | str], *, stochastic: bool = False, given: bool = False
) -> KernelSource:
    same_run, swapped = WAYS[way]
    block = format.block[-1] if isinstance(format.block, tuple) else LENGTHS[-1]
    whole: Run | None = "everywhere" if format.block == "tensor" else "square" if format.min_ndim == 2 else None
    if whole is not None:
        same_run, swapped = (run if run == "nothing" else whole for run in (same_run, swapped))
    return TileSpec(rule, format, block, same_run, swapped, given, stochastic).source()


def sources() -> Iterator[KernelSource]:
    """All kernels of the tests, because building them together is quicker."""
    for name, source, ways in SOME:
        for way in ways:
            yield tiles(CastRule(dtype(source), ALL[name].element), ALL[name], way)
    for name, ways in STOCHASTIC:
        for way in ways:
            yield tiles(CastRule(dtype("FLOAT"), ALL[name].element), ALL[name], way, stochastic=True)
    for name, way in GIVEN:
        yield tiles(CastRule(dtype("FLOAT"), ALL[name].element), ALL[name], way, given=True)
    for name, source, passes in BESIDE:
        rule = CastRule(dtype(source), ALL[name].element)
        yield from (
            QuantizeSpec(rule, ALL[name], kind, lanes=lanes, block=block).source() for kind, lanes, block in passes
        )
    yield tiles(CastRule(dtype("FLOAT"), dtype("FLOAT4E2M1")), ALL["mxfp4"], (-1, True))
    for shape in SHAPES:
        yield kernel_source(resolve(dtype("FLOAT"), dtype("FLOAT")), shape)


@pytest.fixture(scope="module")
def shared() -> HostDriver:
    driver = HostDriver()
    driver.prepare(sources())
    return driver


@pytest.fixture
def driver(shared: HostDriver) -> Iterator[HostDriver]:
    shared.launched.clear()
    with installed(shared):
        yield shared


def check(x: np.ndarray, name: str, way: tuple[int, bool | str], *, given: Any = None, **keywords: Any) -> None:
    """As the reference, each of the results by itself. `given`: x on the device."""
    format, (axis, transpose) = ALL[name], way
    given = upload(x) if given is None else given
    made = quantize(given, format, axis=axis, transpose=transpose, **keywords)
    keywords.pop("scale_layout", None)
    turned = np.ascontiguousarray(x.swapaxes(-1, -2))
    views = {False: [x], True: [turned], "both": [x, turned]}[transpose]
    for q, view in zip(made if transpose == "both" else [made], views, strict=True):
        expected = exact_quantize.quantize(view, format, axis=axis, **keywords)
        compare(q, expected, f"{name} {x.dtype} {x.shape} {way} {keywords}")


def arrays(format: Format, row: DType) -> Iterator[np.ndarray]:
    """All that a block can meet, along rows and down columns, in whole and in ragged tiles; lines of odd lengths."""
    x = matrix(format, row.name)
    yield x[:, : LENGTH if format.element.bits == 8 else LENGTH - 1]
    tall = np.tile(x, (4, 2))[:68]
    tall[:20, 120:140] = x[:, :20].T
    yield tall[:, :144]
    yield np.ascontiguousarray(tall[:64, :128].T)


@pytest.mark.parametrize(("name", "source", "ways"), SOME)
def test_edges_of_blocks(driver: HostDriver, name: str, source: str, ways: Any) -> None:
    for x in arrays(ALL[name], dtype(source)):
        for way in ways:
            check(x, name, way)


@pytest.mark.parametrize(("name", "ways"), STOCHASTIC)
def test_rounding_at_random(driver: HostDriver, name: str, ways: Any) -> None:
    x = matrix(ALL[name], "FLOAT")
    for view in (x[:, : LENGTH - 1], x[:, :72]):
        for way in ways:
            check(view, name, way, rounding="stochastic", seed=2**63 + 1, offset=2**64 - 9)


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (3, 5), (2, 3, 7), (3, 1, 66), (2, 130, 4), (129, 131)])
def test_sizes(driver: HostDriver, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    for way in WAYS:
        check(x, "mxfp8e4m3", way)
    check(x, "float8e4m3fn_128x128", (-1, "both"))


def test_every_format_source_and_way(exhaustive: bool) -> None:
    if not exhaustive:
        pytest.skip("long: run with --exhaustive")
    driver = HostDriver()
    with installed(driver):
        for name, format in ALL.items():
            if format.block == "axis":
                continue
            for row in SOURCES:
                rule = CastRule(row, format.element)
                random = [{}, {"rounding": "stochastic", "seed": 7}][: 1 + (format.element.family == "float")]
                driver.prepare(tiles(rule, format, way, stochastic=bool(more)) for way in WAYS for more in random)
                for x in arrays(format, row):
                    for way in WAYS:
                        for more in random:
                            check(x, name, way, **more)


def test_one_read(driver: HostDriver) -> None:
    """One launch for both ways; what finds the global scale reads x before it, what finds that of a tensor too."""
    x = upload(np.ones((96, 256), np.float32))
    for name, ways in (("mxfp8e4m3", WAYS), ("float8e4m3fn_128x128", [(-1, False), (-1, True), (-1, "both")])):
        for axis, transpose in ways:
            quantize(x, name, axis=axis, transpose=transpose)
            assert kinds(driver) == ["rows" if (axis, transpose) == (-1, False) and name[:2] == "mx" else "tiles"]
    quantize(x, "nvfp4", transpose="both")
    assert kinds(driver) == ["top", "global", "tiles"]
    quantize(x, "nvfp4", transpose="both", scale=0.5)
    assert kinds(driver) == ["tiles"]
    quantize(upload(np.ones((96, 256), dtype("BFLOAT16").numpy)), "float8e5m2_tensor", transpose="both")
    assert kinds(driver) == ["extremes", "scales", "tiles"]
    # An array that is a transpose is read as what it is the transpose of.
    quantize(x.T, "mxfp8e4m3")
    assert kinds(driver) == ["tiles"]
    quantize(x, "mxfp8e4m3", transpose="both", scale_layout="128x4")
    assert kinds(driver) == ["tiles"]


def test_blocks_that_fit_no_tile(driver: HostDriver) -> None:
    """Blocks of other lengths, lines that end inside a byte, other axes, arrays with gaps: as ever."""
    rng = np.random.default_rng(3)
    mine = Format("mine", "INT4", "FLOAT", (24,), "amax")
    x = rng.standard_normal((48, 96)).astype(np.float32)
    for q, view in zip(quantize(upload(x), mine, transpose="both"), (x, np.ascontiguousarray(x.T)), strict=True):
        compare(q, exact_quantize.quantize(view, mine), "24")
    assert "tiles" not in kinds(driver)
    deep = rng.standard_normal((33, 4, 6)).astype(np.float32)
    check(deep, "mxfp8e4m3", (-1, "both"), given=upload(np.tile(deep, 2))[:, :, :6])
    assert kinds(driver)[-1] == "tiles"
    for q, view in zip(
        quantize(upload(deep), "mxfp8e4m3", axis=0, transpose="both"), (deep, deep.swapaxes(1, 2)), strict=True
    ):
        compare(q, exact_quantize.quantize(np.ascontiguousarray(view), ALL["mxfp8e4m3"], axis=0), "0")
    odd = rng.standard_normal((34, 33)).astype(np.float32)
    driver.launched.clear()
    check(odd, "mxfp4", (-1, "both"))
    # The rows end inside a byte, the columns do not.
    assert kinds(driver) == ["extremes", "scales", "elements", "tiles"]
    # Many little matrices would leave most of their tiles empty.
    check(rng.standard_normal((300, 3, 5)).astype(np.float32), "mxfp8e4m3", (-2, False))
    assert "tiles" not in kinds(driver)


def test_given_scales(driver: HostDriver, exhaustive: bool) -> None:
    x = matrix(ALL["int8_64"], "FLOAT")[:, :132]
    for axis, shape in ((1, (20, 3)), (0, (1, 132))):
        per_block = np.random.default_rng(2).random(shape).astype(np.float32) + 0.1
        for name in ("int8_64", "float8e4m3fn_1x128")[: 2 - axis]:
            compare(
                quantize(upload(x), name, axis=axis, scale=upload(per_block)),
                exact_quantize.quantize(x, ALL[name], axis=axis, scale=per_block),
                f"{name} {axis}",
            )
    for name in ("int8_64", "float8e4m3fn_128x128", "int8_tensor")[: 3 if exhaustive else 1]:
        check(x, name, (-1, "both"), scale=0.3)
