# SPDX-License-Identifier: Apache-2.0
"""quantize_grouped and cast_grouped: each group has the bits of a call of its own, on both sides."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from bench import cubin
from gpucast.casting import plans
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule
from gpucast.kernel import compiler
from gpucast.kernel.kernel import program
from gpucast.quantization import FORMATS, Grouped, swizzle
from gpucast.quantization.cuda.grouped import grouped_kernel
from host_driver import HostDriver, elements, installed, upload

NDArray = np.ndarray[Any, Any]
#: Ends of groups of 300 rows, and how many of the groups are valid.
ENDS = [
    ([17, 17, 100, 299, 300], 5),
    ([0, 0, 0, 0, 290], 5),
    ([300, 300, 300, 300, 300], 5),
    ([0, 5, 3, 100, 300], 2),
    ([10, 20, 30, 40, 301], 4),
    ([-1, 5, 6, 7, 8], 0),
    ([4, 2**31 - 1, -(2**31), 7, 8], 1),
]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("mxfp8e4m3", {"scale_layout": "128x4"}),
    ("nvfp4", {"scale": np.float32([0.3, 2.0, 1e-3, 7.0, 1.0])}),
    ("float8e4m3fn_1x128", {"pad": 32, "scale_layout": "mn_major"}),
    ("nvfp4", {"scale": np.float32([2.0] * 5), "pad": 16, "rounding": "stochastic", "seed": 5, "offset": 3}),
]


def numbers(columns: int = 384) -> NDArray:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((300, columns)) * np.exp(3 * rng.standard_normal((300, columns)))
    x[7, 3], x[290], x[150, :40] = np.nan, np.inf, 0
    return x.astype(ml_dtypes.bfloat16)


def model(x: NDArray, ends: list[int], valid: int, format: str, keywords: dict[str, Any]) -> list[bytes]:
    """The parts of a `Grouped`, from a call of `quantize` for each group."""
    pad, scale = keywords.get("pad", 128), keywords.get("scale")
    rows = (len(x) + len(ends) * (pad - 1)) // pad * pad
    codes, scales, starts = None, None, [0]
    for i, (begin, end) in enumerate(zip([0, *ends], ends[:valid], strict=False)):
        random = at_random(keywords, begin * x.shape[1])
        q = gpucast.quantize(x[begin:end], format, scale=None if scale is None else scale[i], **random)
        data = elements(q.data)
        if codes is None or scales is None:
            codes = np.zeros((rows, x.shape[1]), data.dtype)
            scales = np.zeros((rows, q.scales.shape[1]), q.scales.dtype)
        codes[starts[-1] : starts[-1] + end - begin] = data
        scales[starts[-1] : starts[-1] + end - begin] = q.scales
        starts.append(starts[-1] - (begin - end) // pad * pad)
    if codes is None or scales is None:
        return [*model(x, [0] * len(ends), len(ends), format, keywords)[:2], bytes(4 * len(ends)), bytes(4)]
    order = keywords.get("scale_layout", "linear")
    scales = scales if order == "linear" else swizzle.swizzle(scales, layout=order)
    found = starts[1:] + starts[-1:] * (len(ends) - valid)
    return [codes.tobytes(), scales.tobytes(), np.int32(found).tobytes(), np.int32(valid).tobytes()]


def at_random(keywords: dict[str, Any], begin: int) -> dict[str, Any]:
    """The keywords of random rounding for the elements of x from one on."""
    if "seed" not in keywords:
        return {}
    return {"rounding": keywords["rounding"], "seed": keywords["seed"], "offset": keywords["offset"] + begin}


def parts(grouped: Grouped) -> list[bytes]:
    return [elements(part).tobytes() for part in grouped if part is not None]


@pytest.mark.parametrize(("format", "keywords"), CASES, ids=["_".join([name, *keywords]) for name, keywords in CASES])
def test_groups_are_quantized_as_if_alone(format: str, keywords: dict[str, Any]) -> None:
    x = numbers()
    given = {name: upload(value) if isinstance(value, np.ndarray) else value for name, value in keywords.items()}
    with installed(HostDriver(1)) as driver:
        there, out = upload(x), None
        for ends, valid in ENDS:
            offsets = np.int32(ends)
            expected = model(x, ends, valid, format, keywords)
            assert parts(gpucast.quantize_grouped(x, offsets, format, **keywords)) == expected
            driver.launched.clear()
            # With `out` a graph can capture it, whatever the offsets are then.
            driver.capture = out is not None
            on_device = upload(offsets)
            out = gpucast.quantize_grouped(there, on_device, format, out=out, **given)
            driver.capture = False
            assert parts(out) == expected
            assert len(driver.launched) == 1
    wide = gpucast.quantize_grouped(x, np.int64(ENDS[0][0]), format, **keywords)
    assert (wide.offsets.dtype, int(wide.valid)) == (np.int64, 5)


def test_a_group_without_rows_needs_no_words() -> None:
    x = numbers(48)
    random = {"rounding": "stochastic", "seed": 5, "offset": 2**64 - x.size}
    for ends in ([300, 300], [0, 300]):
        here = gpucast.cast_grouped(x, np.int32(ends), "FLOAT16", scale=1.0, **random)
        assert int(here.valid) == 2 and np.array_equal(here.data[:300], gpucast.cast(x, "FLOAT16", **random), True)


@pytest.mark.parametrize("random", [{}, {"rounding": "stochastic", "seed": 5, "offset": 2}], ids=["nearest", "random"])
def test_groups_are_cast_as_if_alone(random: dict[str, Any], to: str = "FLOAT16") -> None:
    x, scales, pad = numbers(48), np.float32([0.3, 2.0, 1e-3, 7.0, 1.0]), 8
    with installed(HostDriver(1)) as driver:
        for ends, valid in ENDS:
            codes, start, offsets = np.zeros(((300 + 5 * 7) // 8 * 8, 48), dtype(to).numpy), 0, np.int64(ends)
            for i, (begin, end) in enumerate(zip([0, *ends], ends[:valid], strict=False)):
                own = at_random(random, begin * 48)
                codes[start : start + end - begin] = gpucast.cast(x[begin:end], to, scale=float(scales[i]), **own)
                start -= (begin - end) // pad * pad
            here = gpucast.cast_grouped(x, offsets, to, scale=scales, pad=pad, **random)
            there = gpucast.cast_grouped(upload(x), upload(offsets), to, scale=upload(scales), pad=pad, **random)
            assert parts(here) == parts(there)
            assert (here.data.tobytes(), here.offsets[-1], here.scales) == (codes.tobytes(), start, None)
        assert len(set(driver.launched)) == 1


def test_a_number_as_scale_is_rounded_once() -> None:
    # As DOUBLEs these are midway between two FLOATs.
    for more, wanted in ((0, 2**60), (1, 2**60 + 2**37)):
        scale = 2**60 + 2**36 + more
        assert np.all(gpucast.cast_grouped(np.ones((2, 32)), np.int32([2]), "FLOAT", scale=scale).data == wanted)


def test_ends_and_scales_with_gaps_are_read_in_their_order() -> None:
    x = numbers(32)
    gaps = {"ends": np.int32([17, -1, 100, -1, 300, -1]), "scales": np.float32([0.3, 9, 2, 9, 7, 9])}
    scales = gaps["scales"][::2]
    ends = gaps["ends"][::2]
    wanted = parts(gpucast.quantize_grouped(x, ends.copy(), "nvfp4", scale=scales.copy()))
    assert parts(gpucast.quantize_grouped(x, ends, "nvfp4", scale=scales)) == wanted
    with installed(HostDriver(1)) as driver:
        there, ends, scales = upload(x), upload(gaps["ends"])[::2], upload(gaps["scales"])[::2]
        out = gpucast.quantize_grouped(there, ends, "nvfp4", scale=scales)
        assert parts(out) == wanted
        odd = np.frombuffer(b"\0" + np.int32([17, 100, 300]).tobytes(), np.uint8)
        odd_ends = upload(odd)[1:].view(np.int32)
        assert parts(gpucast.quantize_grouped(there, odd_ends, "nvfp4", scale=scales)) == wanted
        driver.capture = True
        with pytest.raises(RuntimeError, match="captured, and out.data is not in C order at an aligned address"):
            held = upload(np.zeros(out.data.nbytes, np.uint8), offset=8)
            odd = out._replace(data=gpucast.PackedArray(held, out.data.dtype, out.data.shape))
            whole = upload(gaps["ends"][::2].copy()), upload(gaps["scales"][::2].copy())
            gpucast.quantize_grouped(there, whole[0], "nvfp4", scale=whole[1], out=odd)
        with pytest.raises(RuntimeError, match="captured, and offsets is not in C order"):
            gpucast.quantize_grouped(there, ends, "nvfp4", scale=upload(np.ones(3, np.float32)), out=out)


@pytest.mark.parametrize("to", ["FLOAT4E2M1", "FLOAT6E3M2", "mxfp4", "mxfp6e2m3"])
@pytest.mark.parametrize("packed", [False, True])
def test_narrow_codes_in_given_memory_are_those_of_the_first_call(to: str, packed: bool) -> None:
    """Packed or one to a byte, whatever the first call gave; the bytes around them stay."""
    x, ends = numbers(64)[8:264], np.int64([9, 9, 100])
    if to in FORMATS:
        element, call = FORMATS[to].element, partial(gpucast.quantize_grouped, x, ends, to, pad=1)
    else:
        element, call = dtype(to), partial(gpucast.cast_grouped, x, ends, to, pad=1, scale=2.0)
    made, size, margin = call(), x.size * (element.bits if packed else 8) // 8, x.size
    memory = np.full(margin + size + margin, 0xA5, np.uint8)
    inner = memory[margin : margin + size]
    data = gpucast.PackedArray(inner, element, x.shape) if packed else inner.view(element.numpy).reshape(x.shape)
    for _ in range(3):
        inner[:] = 1
        assert parts(call(out=made._replace(data=data))) == parts(made)
        assert (memory[:margin] == 0xA5).all() and (memory[margin + size :] == 0xA5).all()


@pytest.mark.parametrize("on_device", [False, True])
def test_results_that_cannot_be_written_are_refused_and_kept(on_device: bool) -> None:
    put = upload if on_device else np.array
    with installed(HostDriver(1)):
        # As many rows in as out; the ends that `out` has are others.
        x, ends, scale = put(np.ones((4, 32), np.float32)), put(np.int32([4])), put(np.float32([2]))
        out = gpucast.cast_grouped(x, put(np.int32([2])), "FLOAT", scale=scale)
        unfit: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"data": put(np.zeros((4, 64), np.float32))[:, ::2]}, ValueError, "out.data is not contiguous"),
            ({"data": x}, ValueError, "out.data shares memory with x"),
            ({"offsets": ends}, ValueError, "out.offsets shares memory with offsets"),
            ({"valid": out.offsets.reshape(())}, ValueError, "out.offsets shares memory with out.valid"),
            ({"offsets": [0]}, TypeError, "out.offsets is list; expected an array"),
        ]
        if on_device:
            four = gpucast.cast_grouped(x, ends, "FLOAT4E2M1", scale=scale)
            loose = four._replace(data=put(np.zeros((4, 32), ml_dtypes.float4_e2m1fn)))
            with pytest.raises(ValueError, match="out.data has bytes of their own for its codes"):
                gpucast.cast_grouped(x, ends, "FLOAT4E2M1", scale=scale, out=loose)
        else:
            locked = np.zeros((4, 32), np.float32)
            locked.flags.writeable = False
            unfit.append(({"data": locked}, ValueError, "out.data is read-only"))
        before = parts(out)
        for change, error, words in unfit:
            with pytest.raises(error, match=words):
                gpucast.cast_grouped(x, ends, "FLOAT", scale=scale, out=out._replace(**change))
            assert parts(out) == before
        with pytest.raises(ValueError, match="out.data shares memory with scale"):
            gpucast.cast_grouped(x, ends, "FLOAT", scale=out.data.reshape(-1)[:1], out=out)


def test_a_number_is_rounded_to_float_before_it_scales() -> None:
    x, ends = np.full((1, 16), 3, np.float64), np.int32([1])
    near, far = (gpucast.cast(x, "DOUBLE", scale=scale) for scale in (float(np.float32(0.1)), 0.1))
    assert gpucast.cast_grouped(x, ends, "DOUBLE", scale=0.1).data.tobytes() == near.tobytes() != far.tobytes()


@pytest.mark.parametrize(
    "scale",
    [1e-40, 0.0, -1, float("nan"), 10**400, np.full(1, 2, ">f4"), np.ndarray(1, np.float32, np.ones(5, np.uint8), 1)],
    ids=["subnormal", "zero", "negative", "nan", "huge", "swapped", "unaligned"],
)
def test_a_repeated_call_leaves_other_scales_of_a_single_group_to_the_checks(scale: Any) -> None:
    x, ends = np.ones((4, 16), np.float32), np.array([3])

    def outcome() -> Any:
        try:
            return parts(gpucast.cast_grouped(x, ends, "FLOAT", scale=scale))
        except ValueError as error:
            return str(error)

    plans.forget()
    wanted = outcome()
    for known in (2.0, np.ones(1, np.float32)):
        gpucast.cast_grouped(x, ends, "FLOAT", scale=known)
    assert outcome() == wanted


@pytest.mark.parametrize("ends", [[0, 16], [16, 5], [16, 32]], ids=["empty", "invalid", "last"])
def test_a_repeated_call_refuses_each_scale_before_it_writes(ends: list[int]) -> None:
    x, scale = np.ones((32, 16), np.float32), np.ones(2, np.float32)
    out = gpucast.quantize_grouped(x, np.array([16, 32]), "nvfp4", scale=scale)
    for given in ([16, 32], ends):
        gpucast.quantize_grouped(x, np.array(given), "nvfp4", scale=scale, out=out)
    before = parts(out)
    scale[0 if ends[0] == 0 else 1] = np.nan
    with pytest.raises(ValueError, match="scale= must be finite and above 0"):
        gpucast.quantize_grouped(2 * x, np.array(ends), "nvfp4", scale=scale, out=out)
    assert parts(out) == before


def test_many_groups_and_none_of_them_with_rows() -> None:
    rng = np.random.default_rng(0)
    for count, rows in ((1024, 700), (300, 0), (1, 0)):
        ends = np.sort(rng.integers(0, rows + 1, count)).astype(np.int64)
        x = np.ones((rows, 16), ml_dtypes.bfloat16)
        here = gpucast.cast_grouped(x, ends, "FLOAT16", scale=2.0, pad=4)
        with installed(HostDriver(1)):
            assert parts(gpucast.cast_grouped(upload(x), upload(ends), "FLOAT16", scale=2.0, pad=4)) == parts(here)
        sizes = np.diff(ends, prepend=0)
        assert here.offsets.tolist() == np.cumsum(-(-sizes // 4) * 4).tolist()
        assert int(here.valid) == count


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": np.ones((3, 40), np.float32)}, ValueError, "rows of 40 elements are no multiple of 32"),
        ({"x": np.ones((0, 2**32 - 4096), np.float32)}, ValueError, "elements are longer than 4294959104"),
        (
            {"x": np.broadcast_to(np.float32(1), (2**32 - 4096, 32)), "offsets": np.int64([3])},
            ValueError,
            "rows are more than 4294959104",
        ),
        ({"x": np.ones(32, np.float32)}, ValueError, "expected a matrix"),
        ({"x": np.ones((3, 32), np.int8)}, TypeError, "INT8 must be one of FLOAT"),
        ({"offsets": np.float32([3])}, TypeError, "offsets has dtype float32; expected INT32 or INT64"),
        ({"offsets": np.int32([[3]])}, ValueError, "expected 1 to 1024 ends"),
        ({"offsets": np.zeros(0, np.int32)}, ValueError, "expected 1 to 1024 ends"),
        ({"pad": 24}, ValueError, "pad=24 must be a power of two"),
        ({"pad": 64, "scale_layout": "128x4"}, ValueError, "needs a pad of whole 128, not 64"),
        ({"scale_layout": "8x4"}, ValueError, "scale_layout='8x4' must be one of"),
        ({"format": "float8e4m3fn_128x128"}, ValueError, "has no blocks of 16, 32, 64 or 128"),
        ({"format": "int8_zp_32"}, ValueError, "needs more for its codes than a scale"),
        ({"format": "nvfp4"}, ValueError, "scale=None with nvfp4; expected its global scale"),
        ({"format": "nvfp4", "scale": 0.0}, ValueError, "must be finite and above 0"),
        ({"format": "nvfp4", "scale": np.float32([-1])}, ValueError, "scale= must be finite and above 0"),
        ({"format": "nvfp4", "scale": np.float32([np.nan])}, ValueError, "scale= must be finite and above 0"),
        ({"format": "nvfp4", "scale": np.ones(2, np.float32)}, ValueError, "for all or for each group"),
        ({"out": 3}, TypeError, "out is int; expected the result"),
        ({"seed": 3}, ValueError, "quantize_grouped: seed=3 does not apply to rounding=None"),
        ({"rounding": "stochastic"}, ValueError, "quantize_grouped: rounding='stochastic' needs seed="),
        ({"rounding": "stochastic", "seed": 1, "offset": 2**64 - 1}, ValueError, "are beyond 2\\^64"),
    ],
)
def test_bad_use(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"x": np.ones((3, 32), np.float32), "offsets": np.int32([3]), "format": "mxfp8e4m3"}
    with pytest.raises(error, match=words):
        gpucast.quantize_grouped(**{**given, **change})


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a"])
def test_the_kernels_compile_without_warnings_and_spills(arch: str, exhaustive: bool) -> None:
    if arch != "sm_100a" and not exhaustive:
        pytest.skip("that of sm_100a runs here; all with --exhaustive")
    src = dtype("BFLOAT16")
    rules = (CastRule(src, FORMATS["nvfp4"].element), CastRule(src, dtype("FLOAT8E4M3FN")))
    kernels = [grouped_kernel(rule, format) for rule, format in zip(rules, (FORMATS["nvfp4"], None), strict=True)]
    result = compiler.compile(program(kernels), "groups", arch)
    assert result.log == ""
    assert [fact.local for fact in cubin.kernels(result.code).values()] == [0, 0]


def test_a_tile_without_whole_words_does_not_compile() -> None:
    source = grouped_kernel(CastRule(dtype("DOUBLE"), dtype("FLOAT6E2M3")))
    eight = source.text.replace("_rule, 16>", "_rule, 8>")
    assert eight != source.text
    with pytest.raises(compiler.CompileError, match="a tile of more than 3 bytes has whole words"):
        compiler.compile(eight, "groups", "sm_90")
