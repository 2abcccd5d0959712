# SPDX-License-Identifier: Apache-2.0
"""No result depends on the modes of the thread's processor, and nothing computed under foreign ones is kept: those of
the reference, and of public calls."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import pickle
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
import processor_modes
from codes import assert_same
from foreign_arrays import wide  # noqa: F401
from gpucast import mixed, reference
from gpucast.arrays.packed import as_array
from gpucast.casting.cast_report import result_report
from gpucast.core import checks
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.rule import resolve
from gpucast.host import text as host_text
from gpucast.parity.cases import NUMERIC, cases
from gpucast.quantization import exact_quantize
from gpucast.quantization.cuda import source
from gpucast.quantization.formats import FORMATS, Format, find
from hard_codes import hard_codes
from processor_modes import ALL, DEFAULT, Modes, current, everywhere, under

NDArray = np.ndarray[Any, Any]

pytestmark = processor_modes.needed
#: All at once, one of the processor's alone, and a rounding alone.
FEW = (Modes(True, True, "up"), Modes(daz=True), Modes(rounding="zero"))
STRING, DOUBLE = gpucast.dtype("STRING"), gpucast.dtype("DOUBLE")
TESTS = Path(__file__).parents[1]


def image(x: Any) -> Any:
    """What a result says, to the last bit, without arithmetic."""
    if isinstance(x, dict):
        x = list(x.items())
    if isinstance(x, list | tuple):
        return [image(one) for one in x]
    return x.tolist() if isinstance(x, np.ndarray) and x.dtype == object else pickle.dumps(x)


# ---- the modes themselves ----


def test_these_modes_change_what_python_computes() -> None:
    """Or the other tests of this file would try nothing."""
    tiny, small, one = 5e-324, 2.0**-1022, 1.0
    with under(Modes(daz=True)):
        daz = tiny == 0.0, repr(tiny)
    with under(Modes(ftz=True)):
        ftz = (small * 0.5).hex(), float("5e-324").hex()
    with under(Modes(rounding="up")):
        up = (one + tiny).hex(), float("0.3").hex()
    assert daz == (True, "0.0")
    assert ftz == ("0x0.0p+0", "0x0.0p+0")
    assert up == ("0x1.0000000000001p+0", "0x1.3333333333334p-2")


@pytest.mark.parametrize("modes", ALL, ids=str)
def test_within_there_are_the_default_modes_and_afterwards_those_before(modes: Modes) -> None:
    @exact()
    def within() -> Any:
        return current()

    def fails() -> None:
        with exact():
            raise KeyError

    def work() -> Any:
        before = current()
        with exact() as nothing:
            found = [current(), within(), nothing]
            # Whoever changes them within does so until the end of it.
            processor_modes.put(modes)
            with exact():
                found.append(current())
            found.append(current() == before)
        with pytest.raises(KeyError):
            fails()
        return [*found, current() == before]

    assert everywhere(work, modes) == [[DEFAULT, DEFAULT, None, DEFAULT, True, True]] * 2


def run(program: str, *, cache: Path | None = None, modes: Modes = DEFAULT) -> Any:
    """What a new process says that has these modes before it imports anything of ours."""
    begin = f"import json, processor_modes\nprocessor_modes.put(processor_modes.Modes(*{tuple(modes)!r}))\n"
    # Imported by the helper: under the default modes, whose figures are no matter of ours.
    ended = subprocess.run(
        [sys.executable, "-c", begin + program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS, TESTS / "core", TESTS / "conformance")))}
        | ({} if cache is None else {"PYTHONPYCACHEPREFIX": str(cache)}),
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout)


def test_nothing_traps() -> None:
    """A process that wants a signal for each exception of its processor gets none from us."""
    program = """
import ctypes, numpy as np
from gpucast import reference
library = ctypes.PyDLL(None)
tiny, huge = np.array([5e-324, 1e300, np.inf]), np.array([1e30, 3.0], np.float32)
if library.feenableexcept(1 | 4 | 8 | 16 | 32) < 0:  # -1: the processor has none.
    raise SystemExit("no traps")
found = [reference.cast(tiny, "FLOAT"), reference.cast(huge, "INT8"), reference.cast(["1e-400", "3.7"], "FLOAT16")]
library.fedisableexcept(1 | 4 | 8 | 16 | 32)
print(json.dumps([x.tolist() for x in found], allow_nan=True))
"""
    if sys.platform != "linux" or not hasattr(__import__("ctypes").CDLL(None), "feenableexcept"):
        pytest.skip("this C library sets no traps")
    assert run(program) == [[0.0, math.inf, math.inf], [0, 3], [0.0, 3.69921875]]


# ---- what is computed ----


def _codes(row: DType) -> list[int]:
    if row.bits <= 8:
        return list(range(row.code_mask + 1))
    rng, top, first = random.Random(5), row.code_mask, 1 << row.mantissa_bits
    chosen = [0, 1, 2, 3, first - 1, first, first + 1, top >> 1, top, row.sign_code, row.sign_code | 1, top - 1]
    some = [rng.getrandbits(row.bits) for _ in range(60)]
    return chosen + some[:50] + [code % first for code in some[50:]]


@functools.cache
@exact()
def sources(src: DType) -> NDArray:
    """Hard elements: subnormals, the points where rounding changes for some types, edges; chosen under the default
    modes."""
    if src.bits <= 8:
        return hard_codes(src, src, 256).view(src.numpy)
    narrow = (gpucast.dtype(name) for name in ("FLOAT", "FLOAT8E8M0", "BFLOAT16", "FLOAT8E5M2", "FLOAT4E2M1"))
    found = [hard_codes(src, dst, 60 if src.bits > 16 else 20) for dst in narrow]
    return np.random.default_rng(5).permutation(np.concatenate(found)).view(src.numpy)


FLOATS = [row for row in DTYPES if row.is_float]
TEXTS = (
    "0 -0 1 -1.5 0.1 0.3 1e-5 1e22 1e23 8.5e15 5e-324 2.5e-324 2.4e-324 -5e-324 1e-310 2.2250738585072011e-308 1e-400 "
    "1.4e-45 7e-46 7.1e-46 1.17549435e-38 1.1754942e-38 9.2e-41 6e-8 2.98e-8 2.9802322387695313e-08 1e-30 5.9e-39 "
    "5.877471754111438e-39 8.8e-39 1.6777217e7 9007199254740993 0.1e-6 3.4028236e38 1e400 -1e400 NaN -nan inf -INF "
    "0.000030517578125 33.33 1e13 123456789e-20 4.35 179769313486231580793e289 1e-4 1e15 1e16 99999999999999999 0.5e-45"
).split()


def values_of_dtypes() -> Any:
    infos = [vars(gpucast.finfo(row)) | {"dtype": 0} for row in NUMERIC if row.is_float]
    ranges = [(gpucast.iinfo(row).min, gpucast.iinfo(row).max) for row in NUMERIC if row.family == "int"]
    return (
        [[row.value(code) for code in codes] for row, codes in ((row, _codes(row)) for row in NUMERIC)],
        infos,
        ranges,
    )


def numbers_of_formats() -> Any:
    names = [*FORMATS, "mxfp8e5m2_even", "int8_64_full_range", "int4_axis_no_clipping"]
    kept = [find(name, "") for name in names]
    # New objects, too: the table's have kept theirs.
    formats = [Format(*(getattr(one, column) for column in Format.__dataclass_fields__)) for one in kept]
    formats += [*kept, Format("mine", "INT4", "FLOAT", (48,), "amax")]
    return [
        (one.divisor, one.smallest_scale, one.bits, one.negative_weight, source.format_struct(one, False, "F"))
        for one in formats
    ]


def casts_of_the_reference() -> Any:
    """Each source to every third destination, another one each."""
    return [
        reference.cast(sources(src), dst, **dict(case.attributes)).tobytes()
        for i, src in enumerate(NUMERIC)
        for dst in NUMERIC[i % 3 :: 3]
        for case in cases(src, dst)
    ]


def casts_of_all_pairs() -> Any:
    """Short arrays by every rule, long ones by the default."""
    found = []
    for src, dst in itertools.product(NUMERIC, NUMERIC):
        x = sources(src)
        found += [gpucast.cast(x[:5], dst, **dict(case.attributes)).tobytes() for case in cases(src, dst)]
        found.append(gpucast.cast(np.resize(x.view(src.code_numpy), 20_000).view(src.numpy), dst).tobytes())
    return found


def quantized_by_all_formats() -> Any:
    found = []
    for name, length, format in itertools.product(("FLOAT", "BFLOAT16", "DOUBLE"), (5, 200), FORMATS.values()):
        x = np.resize(sources(gpucast.dtype(name)), (4, length))
        x[~np.isfinite(reference.cast(x, "DOUBLE"))] = 0
        q = gpucast.quantize(x, format, axis=0 if format.block == "axis" else 1)
        back = [np.asarray(one).tobytes() for one in (q.dequantize("FLOAT"), gpucast.dequantize(q, "BFLOAT16"))]
        found.append((str(format), *(np.asarray(part).tobytes() for part in q.parts().values()), *back))
    return found


SCALED = np.array([np.inf, 1.0, -3e38, np.nan], np.float32)


def casts_by_scales_that_processors_flush() -> Any:
    x, found = SCALED, []
    for scale, to in itertools.product((2.0**-1074, 1e-310, 2.0**-149, 1e-40), ("FLOAT", "DOUBLE", "FLOAT16")):
        # The second cast is one by a plan.
        found += [gpucast.cast(x, to, scale=scale).tobytes() for _ in range(2)]
        found += [y.tobytes() for y in gpucast.cast_many([x, x], to, scale=scale)]
    return found


def texts_to_numbers() -> Any:
    x, found = np.array(TEXTS, object), []
    for dst in FLOATS:
        rule = resolve(STRING, dst)
        found += [reference.cast(x, dst), host_text.parse(x, rule), host_text.parse(np.tile(x, 500), rule)]
    plain = [text for text in TEXTS if text.lower().strip("-") not in ("nan", "inf") and "e" not in text]
    for dst in (gpucast.dtype("INT64"), gpucast.dtype("BOOL")):
        whole = np.array(plain, object)
        found += [host_text.parse(whole, resolve(STRING, dst)), reference.cast(whole, dst)]
    return found


def numbers_to_texts() -> Any:
    found = []
    for src in FLOATS:
        y = sources(src)[:200]
        long = np.tile(y, -(-5000 // y.size))
        found += [host_text.format(some, resolve(src, STRING)) for some in (y, long)]
        found.append(reference.cast(y, "STRING"))
    return found


def quantized_by_the_reference() -> Any:
    rng, found = np.random.default_rng(4), []
    for name in ("FLOAT", "DOUBLE"):
        row = gpucast.dtype(name)
        x = rng.choice(sources(row), (4, 70))
        x[(x.view(row.code_numpy) & row.inf_code) == row.inf_code] = 0
        x[0] = 0
        # Quotients are rounded here.
        x[3] = reference.cast(rng.standard_normal(70), row)
        for format in [*FORMATS.values(), find("mxfp4_even", ""), find("int8_64_no_clipping", "")]:
            if format.element.bits > 2 or name == "FLOAT":
                parts = exact_quantize.quantize(x, format, axis=1)
                back = [exact_quantize.dequantize(parts, format, to, axis=1) for to in (name, "DOUBLE")]
                found.append((str(format), parts.data, parts.scales, parts.zero_points, parts.global_scale, *back))
    return found


def reports() -> Any:
    found = [gpucast.cast_report(np.array(TEXTS, object), "FLOAT")]
    for src in (gpucast.dtype(name) for name in ("DOUBLE", "FLOAT", "BFLOAT16", "FLOAT8E8M0", "INT64")):
        x = sources(src)
        for to in ("DOUBLE", "FLOAT", "FLOAT16", "FLOAT8E4M3FN", "FLOAT8E8M0", "INT8"):
            found += [gpucast.cast_report(some, to) for some in (x, np.tile(x, -(-9000 // x.size)))]
            found.append(result_report(x, reference.cast(x, to), resolve(src, gpucast.dtype(to))))
    return found


def loss_scales() -> Any:
    # 2^127 has a subnormal inverse; products with 1.1 are rounded.
    found: list[Any] = [mixed.StaticLossScale(scale)._factors(None) for scale in (2.0**127, 0.1, 3e38)]
    scale = mixed.DynamicLossScale(0.7, factor=1.1, backoff=1.3, min_loss_scale=2.0**-120, period=1)
    for finite in (True, True, False, True, False, False):
        scale.adjust(finite)
        found.append((scale.state_dict(), scale._state.tobytes()))
    scaling = mixed.DelayedScaling("FLOAT8E5M2", tensors=4, history=2, margin=1)
    scaling.amax.view(np.uint32)[...] = [0x3E99999A, 0x000116C2, 0x7F61B1E6, 0]  # 0.3, 1e-40, 3e38, 0
    # The inverse of the largest scale is subnormal.
    scaling.load_state_dict(scaling.update().state_dict())
    found.append(scaling.state_dict()["state"].tobytes())
    found.append(gpucast.ufunc("a * 0 + 1.0001e-5", "DOUBLE", compute="DOUBLE")(np.zeros(2)).tobytes())
    top = mixed.DynamicLossScale(2.0**127, period=1)
    top.adjust(True)
    other = mixed.DynamicLossScale()
    other.load_state_dict(top.state_dict())
    grads = {name: sources(gpucast.dtype(name))[:50] for name in ("FLOAT", "BFLOAT16", "FLOAT16", "DOUBLE")}
    for one in (mixed.StaticLossScale(2.0**127), mixed.DynamicLossScale(7.7), mixed.NoOpLossScale()):
        found += [one.unscale(grads), one.scale(grads)]
    return [*found, top.state_dict(), top._state.tobytes(), other._state.tobytes()]


GIVEN = [np.float32(1e-45), 1.0, np.float16(6e-8)]
NUMBERS = (np.float32(1e-45), np.float16(6e-8), 5e-324, 2**70 + 1, np.float64(1e-310), np.float32(0.1))


def numbers_of_callers() -> Any:
    """Keywords, and lists, of which NumPy makes one type by arithmetic of the processor."""
    return [checks.as_double(value) for value in NUMBERS], as_array(GIVEN, "test"), reference.cast(GIVEN, "FLOAT")


RESULTS: list[Callable[[], Any]] = [
    values_of_dtypes, numbers_of_formats, texts_to_numbers, numbers_to_texts, quantized_by_the_reference, reports,
    loss_scales, numbers_of_callers, casts_by_scales_that_processors_flush,
]  # fmt: skip
#: Those that keep nothing, and take long.
CASTS: list[Callable[[], Any]] = [casts_of_the_reference, casts_of_all_pairs, quantized_by_all_formats]


@pytest.mark.parametrize("function", [*RESULTS, *CASTS], ids=lambda function: function.__name__)
def test_the_same_under_all_modes(function: Callable[[], Any]) -> None:
    """In this thread and in new ones."""
    wanted = image(function())
    for modes in FEW:
        for found in everywhere(lambda: image(function()), modes):
            assert found == wanted, modes


#: What `RESULTS` say in a process that imports our modules under other modes, and computes under them. The values it
#: tries are chosen under the default ones.
KEPT = """
import hashlib
import gpucast
from gpucast import mixed, reference
from gpucast.casting import cast_report
from gpucast.host import text as host_text
from gpucast.quantization.cuda import source
from gpucast.quantization import exact_quantize
with processor_modes.under(processor_modes.DEFAULT):
    import test_arithmetic as tests
found = {function.__name__: repr(tests.image(function())) for function in tests.RESULTS}
print(json.dumps({name: hashlib.sha256(one.encode()).hexdigest() for name, one in found.items()}))
"""


def test_a_process_that_began_with_other_modes(tmp_path: Path) -> None:
    """Tables and constants of modules, which are computed once."""
    wanted = run(KEPT)
    # Python compiles our modules anew, and the constants of their texts.
    assert run(KEPT, cache=tmp_path, modes=FEW[0]) == wanted
    # What it has kept on the disk is right for all who come later.
    assert run(KEPT, cache=tmp_path) == wanted


def test_a_tiny_scale_is_negative_under_all_modes() -> None:
    for modes in FEW:
        with under(modes), pytest.raises(ValueError, match="not negative"):
            gpucast.cast(np.ones(3, np.float32), "FLOAT16", scale=-5e-324)


# ---- what others set ----


def test_numpy_may_raise_and_warnings_may_be_errors() -> None:
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for src, dst in itertools.product(NUMERIC, (*NUMERIC, STRING)):
            gpucast.cast_report(sources(src)[:5], dst)
            if src.is_float:
                gpucast.cast(sources(src)[:5], "STRING")


def test_the_threads_of_jax(wide: None) -> None:  # noqa: F811
    """XLA's threads flush subnormals; what is computed there is right, and poisons nothing."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    pairs = itertools.permutations((gpucast.dtype(n) for n in ("FLOAT", "BFLOAT16", "DOUBLE")), 2)
    for (src, dst), size in itertools.product(pairs, (5, 2_000)):
        x = np.resize(sources(src).view(src.code_numpy), size).view(src.numpy)
        x[: min(size, 7)] = np.arange(1, 1 + min(size, 7)).astype(src.code_numpy).view(src.numpy)
        got = np.asarray(jax.jit(lambda x, dst=dst: gpucast.cast(x, dst))(x))
        assert_same(got, reference.cast(x, dst))
    for format in ("mxfp8e4m3", "mxfp4", "nvfp4"):
        zeros = gpucast.quantize(np.zeros((4, 64), np.float32), format).dequantize()
        assert not zeros.any() and not np.isnan(zeros).any()


@pytest.mark.peers
def test_what_torch_sets() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = np.resize(sources(gpucast.dtype("FLOAT")), 20_000)
    right = {to: reference.cast(x, to) for to in ("DOUBLE", "BFLOAT16", "FLOAT16")}
    tensor = torch.from_numpy(x.copy())
    try:
        assert torch.set_flush_denormal(True)
        found = {to: gpucast.cast(x, to) for to in right}
        tensors = {to: gpucast.cast(tensor, to) for to in right}
    finally:
        torch.set_flush_denormal(False)
    for to, wanted in right.items():
        assert_same(found[to], wanted)
        assert tensors[to].view(torch.uint8).numpy().tobytes() == wanted.tobytes()
