# SPDX-License-Identifier: Apache-2.0
"""gpucast.ufunc: NumPy and the kernels' host build give the bits of casts, NumPy's arithmetic, and one cast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast
from codes import values
from gpucast.arrays.packed import PackedArray
from gpucast.core.rule import Options, resolve
from gpucast.kernel.fused_kernel import FusedOps
from gpucast.user_kernels.expression import parse
from gpucast.user_kernels.ufunc_kernel import UfuncInput, ufunc_kernel
from host_driver import elements, upload
from nvrtc_wheels import INSTALLED, load

SHAPE = (3, 5, 37)
#: Expression, types of the inputs, compute type, result, attributes; between them every operation and kind of input.
CASES: tuple[tuple[str, tuple[str, ...], str, str, dict[str, Any]], ...] = (
    ("a * b + c", ("FLOAT", "FLOAT16", "FLOAT8E4M3FN"), "FLOAT", "FLOAT8E4M3FN", {}),
    ("where(a > 0 and not b < a, sqrt(abs(a)), -b) / 3", ("BFLOAT16", "INT64"), "DOUBLE", "FLOAT16", {}),
    ("maximum(a, 0) - minimum(b, a) if a != b else 0.1", ("INT4", "FLOAT6E2M3"), "FLOAT", "INT8",
     {"rounding": "nearest_even", "overflow": "saturate"}),
    ("a - b", ("DOUBLE", "FLOAT4E2M1"), "FLOAT", "FLOAT4E2M1", {}),
)  # fmt: skip


def model(text: str, arrays: list[np.ndarray], compute: str, out: str, attributes: dict[str, Any]) -> np.ndarray:
    """Python's own evaluation of the text with the names of NumPy."""
    known = {"sqrt": np.sqrt, "where": np.where, "abs": np.abs}
    known |= {"maximum": lambda a, b: np.where((a > b) | np.isnan(a), a, b)}
    known |= {"minimum": lambda a, b: np.where((a < b) | np.isnan(a), a, b)}
    # Python's `and` and `if` take no arrays: element by element.
    kind = gpucast.dtype(compute).numpy.type
    wide = np.broadcast_arrays(*(gpucast.reference.cast(x, compute) for x in arrays))
    for number in ("0.1", "3", "0"):
        text = text.replace(f" {number}", f" kind({number})")
    with np.errstate(all="ignore"):
        found = [eval(text, known | {"kind": kind}, dict(zip("abc", row, strict=False)))
                 for row in zip(*(x.reshape(-1) for x in wide), strict=True)]  # fmt: skip
    value = np.array(found, kind).reshape(wide[0].shape)
    value[np.isnan(value)] = np.nan
    return gpucast.reference.cast(value, out, **attributes)


def inputs(types: tuple[str, ...]) -> list[np.ndarray]:
    """Random codes: one array of the shape, others that are broadcast or have strides."""
    shapes = [SHAPE, SHAPE[1:], (3, 1, 37)]
    found = [values(kind, shape, seed=i) for i, (kind, shape) in enumerate(zip(types, shapes, strict=False))]
    if len(found) == 2:
        found[0] = np.ascontiguousarray(found[0].transpose(2, 1, 0)).transpose(2, 1, 0)
    return found


def same(got: np.ndarray, wanted: np.ndarray) -> bool:
    return got.dtype == wanted.dtype and got.shape == wanted.shape and got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_it_is_arithmetic_and_one_cast(case: Any, driver: Any) -> None:
    text, types, compute, out, attributes = case
    arrays = inputs(types)
    f = gpucast.ufunc(text, out, compute=compute, **attributes)
    wanted = model(text, arrays, compute, out, attributes)
    assert same(f(*arrays), wanted)
    # Some packed, the others as they lie.
    device = [
        PackedArray(upload(PackedArray.pack(x).data), x.dtype, x.shape) if gpucast.dtype(x.dtype).packed else upload(x)
        for x in arrays
    ]
    got = f(*device)
    assert same(elements(got), wanted)
    assert len(driver.launched) == 1
    # Into memory with gaps, and of the host in another order.
    if not gpucast.dtype(out).packed:
        space = upload(np.zeros((*SHAPE[:-1], 2 * SHAPE[-1]), wanted.dtype))[..., ::2]
        assert f(*device, out=space) is space and same(elements(space), wanted)
    order = np.empty(SHAPE[::-1], wanted.dtype).T
    assert f(*arrays, out=order) is order and same(np.ascontiguousarray(order), wanted)


def test_scale_amax_and_random_bits_are_those_of_a_cast_of_the_value(driver: Any) -> None:
    x = np.random.default_rng(0).standard_normal((200, 1000)).astype(np.float32)
    f = gpucast.ufunc("a * b", "FLOAT8E5M2", rounding="stochastic")
    keywords: dict[str, Any] = {"scale": 0.3, "seed": 5, "offset": 7}
    found, wanted = np.zeros(1, np.float32), np.zeros(1, np.float32)
    expected = gpucast.cast(x * x[:1], "FLOAT8E5M2", rounding="stochastic", amax=wanted, **keywords)
    assert same(f(x, x[:1], amax=found, **keywords), expected) and found == wanted
    on_device = upload(np.zeros(1, np.float32))
    assert same(elements(f(upload(x), upload(x[:1]), amax=on_device, **keywords)), expected)
    assert elements(on_device) == wanted


def test_a_scale_in_the_result_is_read_once() -> None:
    f = gpucast.ufunc("a", out="FLOAT")
    y = np.full(200_000, 3, np.float32)
    f(np.full(200_000, 2, np.float32), out=y, scale=y[:1])
    assert (y == 6).all()


def test_an_input_may_be_called_self() -> None:
    assert gpucast.ufunc("self + 1", out="FLOAT")(self=np.float32([1])).tolist() == [2]


def test_numbers_foreign_order_and_empty_arrays() -> None:
    f = gpucast.ufunc("a + b", "INT16")
    assert f.names == ("a", "b")
    assert f(np.array([1, 2], ">i4"), b=3).tolist() == [4, 5]
    assert f(1, 2).tolist() == 3 and f(np.zeros((0, 3)), 1).shape == (0, 3)
    # A number is rounded once, and may be a flag or an array of shape ().
    near = [2**60 + 2**36 + more for more in (-1, 0, 1)]
    for compute, wanted in (("FLOAT", [0, 0, 2**37]), ("DOUBLE", [2**36] * 3)):
        number = gpucast.ufunc("a", "UINT64", compute=compute)
        assert [int(number(one)) - 2**60 for one in near] == wanted
    assert [f(flag, 1) for flag in (True, np.bool_(True), np.array(True))] == [2] * 3
    packed = PackedArray.pack(np.int8([1, -2, 3]), "INT4")
    out = PackedArray.pack(np.zeros(3, np.int8), "INT4")
    assert gpucast.ufunc("-a", "INT4")(packed, out=out) is out and out.tolist() == [-1, 2, -3]


@pytest.mark.peers
def test_tensors_give_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(4, dtype=torch.bfloat16)
    y = gpucast.ufunc("a * b", "FLOAT8E4M3FN")(x, 0.5)
    assert y.dtype == torch.float8_e4m3fn and y.float().tolist() == [0, 0.5, 1, 1.5]
    with pytest.raises(ValueError, match="ufunc: a requires a gradient"):
        gpucast.ufunc("a", "FLOAT16")(x.requires_grad_())


@pytest.mark.parametrize("major", INSTALLED)
def test_nvrtc_compiles_every_operation(major: int) -> None:
    nvrtc = load(major)
    for text, types, compute, out, attributes in CASES[1:3]:
        rule = resolve(gpucast.dtype(compute), gpucast.dtype(out), Options(**attributes))
        kinds = tuple(UfuncInput(kind, kind.bits, "dense") for kind in map(gpucast.dtype, types))
        kernel = ufunc_kernel(parse(text, ""), rule, FusedOps(amax=True), kinds, "dense")
        assert not nvrtc.compile(kernel.text, kernel.name, "sm_90", ("--std=c++17", "--minimal")).log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a ** 2", "has 'a \\*\\* 2'; expected names"),
        ("exp(a)", "has 'exp\\(a\\)'"),
        ("a.real", "has 'a.real'"),
        ("a > 0", "is true or false"),
        ("1 + 2", "is a number alone"),
        ("a +", "is not an expression of Python"),
        ("where(a, a, a)", "has a number as operand 1 of where"),
        ("(a > 0) + 1", "has a condition as operand 1 of add"),
        ("a * 1e999", "which DOUBLE does not hold"),
        ("-" * 5000 + "a", "ufunc: expression"),
        ("out + 1", "names 'out', which is a keyword"),
    ],
)
def test_other_expressions_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpucast.ufunc(text, "FLOAT16")


def test_wrong_calls() -> None:
    f = gpucast.ufunc("a + b", "FLOAT16")
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(TypeError, match="ufunc: got 1 arrays; expected one for each of a, b"):
        f(x)
    with pytest.raises(ValueError, match="ufunc: shapes do not broadcast: a \\(2, 3\\), b \\(4,\\)"):
        f(x, np.zeros(4))
    with pytest.raises(TypeError, match="ufunc: b has dtype STRING"):
        f(x, np.array(["1"]))
    with pytest.raises(ValueError, match="ufunc: out has shape \\(2,\\)"):
        f(x, x, out=np.zeros(2, np.float16))
    y = np.zeros(12, np.float16)
    with pytest.raises(ValueError, match="ufunc: out overlaps x"):
        f(y[1:7], 1, out=y[:6])
    with pytest.raises(ValueError, match="compute=FLOAT16 is not FLOAT or DOUBLE"):
        gpucast.ufunc("a", "FLOAT16", compute="FLOAT16")
    with pytest.raises(ValueError, match="out=STRING"):
        gpucast.ufunc("a", "STRING")


def test_long_expressions_are_evaluated_or_refused() -> None:
    x = np.ones(3, np.float32)
    for text, value in (("+".join(["x"] * 300), 300.0), (f"{'-' * 300}x", 1.0)):
        np.testing.assert_array_equal(gpucast.ufunc(text, "FLOAT")(x), np.full(3, value, np.float32))
    for text in ("+".join(["x"] * 340), f"{'-' * 480}x", "x" + "*x" * 5000):
        with pytest.raises(ValueError, match="nested too deeply"):
            gpucast.ufunc(text, "FLOAT")


def test_errors_of_long_expressions_are_short() -> None:
    for text in ("a + 0x" + "f" * 4000, "a + b(" + "9" * 4000 + ")", "+".join(["a"] * 9000), "a $ " + "b" * 4000):
        with pytest.raises(ValueError, match="ufunc: expression=.*characters") as caught:
            gpucast.ufunc(text, out="FLOAT16")
        assert len(str(caught.value)) < 600
    with pytest.raises(ValueError, match="ufunc: a has 33 dimensions; expected at most 32"):
        gpucast.ufunc("a + 1", out="FLOAT16")(np.zeros((1,) * 33))
