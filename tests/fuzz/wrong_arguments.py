# SPDX-License-Identifier: Apache-2.0
"""Every public function with arguments that it takes, and values that hardly any of them takes."""

from __future__ import annotations

import atexit
import datetime
import decimal
import fractions
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import gpucast
from gpucast import layers, mixed, quantization, reference


@dataclass(frozen=True)
class Call:
    """A function and arguments for it, made anew for each call."""

    function: Callable[..., Any]
    arguments: Callable[[], dict[str, Any]]
    #: Errors beside TypeError, ValueError, OverflowError and RuntimeError that its documentation names.
    also: tuple[type[Exception], ...] = ()
    #: Keywords that its signature does not tell.
    more: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """The arguments, and the other keywords that the function has."""
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        known = inspect.signature(self.function).parameters.values()
        return [*dict.fromkeys([*self.arguments(), *(one.name for one in known if one.kind not in kinds), *self.more])]


def x() -> np.ndarray[Any, Any]:
    return np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def packed() -> gpucast.PackedArray:
    return gpucast.PackedArray.pack(x().astype(ml_dtypes.int4))


def quantized() -> gpucast.Quantized:
    made: gpucast.Quantized = gpucast.quantize(np.ones((2, 32), np.float32), "mxfp8e4m3")
    return made


def _backward(dy: Any) -> Any:
    made = layers.Cast("FLOAT16")
    made.forward(x())
    return made.backward(dy)


_FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, _FOLDER)


def _file() -> str:
    return os.path.join(_FOLDER, "x.safetensors")


def _saved() -> str:
    gpucast.save(_file(), {"a": x(), "q": quantized()})
    return _file()


_LIKE = {"like": np.zeros(1, np.float16)}

CALLS: dict[str, Call] = {
    "cast": Call(gpucast.cast, lambda: {"x": x(), "to": "FLOAT16"}),
    "cast of packed": Call(gpucast.cast, lambda: {"x": packed(), "to": "FLOAT16"}),
    "cast at random": Call(gpucast.cast, lambda: {"x": x(), "to": "FLOAT16", "rounding": "stochastic", "seed": 1}),
    "cast_like": Call(gpucast.cast_like, lambda: {"x": x()} | _LIKE),
    "cast_many": Call(
        gpucast.cast_many,
        lambda: {"arrays": {"a": x(), "b": [x()]}, "to": "FLOAT16"},
    ),
    "cast_report": Call(gpucast.cast_report, lambda: {"x": x(), "to": "FLOAT16"}),
    "reference.cast": Call(reference.cast, lambda: {"x": x(), "to": "FLOAT16"}),
    "dtype": Call(gpucast.dtype, lambda: {"anything": "FLOAT"}),
    "finfo": Call(gpucast.finfo, lambda: {"kind": "FLOAT"}),
    "iinfo": Call(gpucast.iinfo, lambda: {"kind": "INT4"}),
    "empty": Call(gpucast.empty, lambda: {"shape": (2, 3), "dtype": "FLOAT"}, (MemoryError,)),
    "empty_like": Call(gpucast.empty_like, lambda: {"x": x()}),
    "from_bytes": Call(gpucast.from_bytes, lambda: {"buffer": bytes(3), "dtype": "INT4", "shape": (2, 3)}),
    "from_dlpack": Call(gpucast.from_dlpack, lambda: {"x": x()}),
    "to_dlpack": Call(gpucast.to_dlpack, lambda: {"x": x()}, also=(BufferError,)),
    "device_function": Call(gpucast.device_function, lambda: {"src": "FLOAT", "dst": "INT4"}),
    "device_functions": Call(gpucast.device_functions, lambda: {"functions": [("FLOAT", "INT4")]}),
    "ufunc": Call(gpucast.ufunc, lambda: {"expression": "a + b", "out": "FLOAT16"}),
    "call of a ufunc": Call(
        gpucast.ufunc("a + b", "FLOAT16"), lambda: {"a": x(), "b": x()}, more=("seed", "offset", "scale", "amax", "out")
    ),
    # With no pairs nothing is compiled; None would be all pairs.
    "warmup": Call(
        lambda arch, **more: gpucast.warmup([], arch, **more),
        lambda: {"arch": "sm_90"},
        more=("scale", "amax", "transposed", "fused", "saturate", "round_mode", "opset", "rounding", "overflow"),
    ),
    "warmup pairs": Call(lambda pair: gpucast.warmup([pair], "sm_90"), lambda: {"pair": ("FLOAT", "FLOAT16")}),
    "PackedArray": Call(gpucast.PackedArray, lambda: {"data": np.zeros(3, np.uint8), "dtype": "INT4", "shape": (2, 3)}),
    "pack": Call(gpucast.PackedArray.pack, lambda: {"x": x().astype(ml_dtypes.int4)}),
    "packed index": Call(lambda a, at: a[at], lambda: {"a": packed(), "at": 0}, (IndexError, KeyError)),
    "packed reshape": Call(lambda one, shape: packed().reshape(shape), lambda: {"one": 1, "shape": (3, 2)}),
    "quantize": Call(
        gpucast.quantize,
        lambda: {"x": np.ones((2, 32), np.float32), "format": "mxfp8e4m3"},
    ),
    "dequantize": Call(gpucast.dequantize, lambda: {"q": quantized(), "to": "FLOAT"}),
    "Quantized": Call(
        gpucast.Quantized,
        lambda: {name: getattr(quantized(), name) for name in gpucast.Quantized.__dataclass_fields__},
    ),
    "save": Call(
        gpucast.save, lambda: {"path": _file(), "arrays": {"a": x(), "b": packed()}, "metadata": {"a": "b"}}, (OSError,)
    ),
    "save one": Call(lambda array: gpucast.save(_file(), {"a": array}), lambda: {"array": x()}),
    "load": Call(gpucast.load, lambda: {"path": _saved(), "library": "numpy", "device": "cpu"}, (OSError,)),
    "Cast": Call(layers.Cast, lambda: {"to": "FLOAT16"}),
    "forward": Call(lambda x: layers.Cast("FLOAT16").forward(x), lambda: {"x": x()}),
    "backward": Call(_backward, lambda: {"dy": x()}),
    "CastLike": Call(lambda x, like: layers.CastLike().forward(x, like), lambda: {"x": x()} | _LIKE),
    "get_policy": Call(mixed.get_policy, lambda: {"text": "p=f32,c=bf16"}),
    "Policy": Call(mixed.Policy, lambda: {"param_dtype": "FLOAT", "compute_dtype": "FLOAT16", "output_dtype": "FLOAT"}),
    "cast_to_compute": Call(
        lambda tree: mixed.get_policy("p=f32,c=bf16").cast_to_compute(tree), lambda: {"tree": {"a": x()}}
    ),
    "StaticLossScale": Call(mixed.StaticLossScale, lambda: {"loss_scale": 2.0}),
    "DynamicLossScale": Call(mixed.DynamicLossScale, lambda: {"loss_scale": 2.0}),
    "DelayedScaling": Call(mixed.DelayedScaling, lambda: {"to": "FLOAT8E4M3FN"}),
    "scale": Call(lambda tree, to: mixed.StaticLossScale(2.0).scale(tree, to=to), lambda: {"tree": [x()], "to": None}),
    "unscale": Call(
        lambda grads, **more: mixed.StaticLossScale(2.0).unscale(grads, **more),
        lambda: {"grads": [x()]},
        more=("to", "out", "finite"),
    ),
    "adjust": Call(lambda finite: mixed.DynamicLossScale(2.0).adjust(finite), lambda: {"finite": True}),
    "load_state_dict": Call(
        lambda **state: mixed.DynamicLossScale(2.0).load_state_dict(state),
        lambda: mixed.DynamicLossScale(2.0).state_dict(),
    ),
    "select_tree": Call(mixed.select_tree, lambda: {"finite": True, "new": {"a": x()}, "old": {"a": x()}}),
    "swizzle": Call(quantization.swizzle.swizzle, lambda: {"scales": np.zeros((2, 3), np.uint8)}),
    "unswizzle": Call(quantization.swizzle.unswizzle, lambda: {"scales": np.zeros(512, np.uint8), "shape": (2, 3)}),
}


class Duck:
    """Has the attributes of an array, which are none."""

    dtype = "FLOAT"
    shape = "shape"
    size = ndim = nbytes = None


class Texts(str):
    """A str, and yet not one."""

    __slots__ = ()


def _itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


#: Made anew for each call, as some are written to.
WRONG: dict[str, Callable[[], Any]] = {
    **{repr(value)[:40]: (lambda value=value: value) for value in (
        None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**70, 10**400, 0.0, 1.5, -0.5, float("nan"), float("inf"), 1e400,
        1j, "", "junk", "float7", "FLOAT", "f4", "cuda", "cuda:99", "cuda:-1", "cpu", "\0", "\ud800", "x" * 10_000, b"",
        b"abc", (), (0,), (1, 2, 3), (-1,), (2.5,), ("a",), [], [None], [[1], [1, 2]], {}, {1: 2}, set(),
        frozenset({1}), int, float, object, str,
        np.float32, np.complex64, len, Ellipsis, NotImplemented, range(6), slice(None),
        decimal.Decimal("1.5"), fractions.Fraction(1, 3), datetime.date(2020, 1, 1), np.bool_(True), np.float64(2),
        np.int8(-3), np.str_("FLOAT"), np.datetime64("2020"), np.dtype("O"), np.dtype([("a", "<f4")]),
        np.dtype("<M8[s]"),
    )},
    "object": object,
    "Duck": Duck,
    "Texts": lambda: Texts("FLOAT"),
    "itself": _itself,
    "generator": lambda: (i for i in range(3)),
    "bytearray": lambda: bytearray(6),
    "memoryview": lambda: memoryview(bytes(6)),
    "packed": packed,
    "quantized": quantized,
    "float32": x,
    "float16": lambda: x().astype(np.float16),
    "one": lambda: np.ones(1, np.float32),
    "one bool": lambda: np.ones(1, bool),
    "read-only": lambda: np.broadcast_to(np.float16(1), (2, 3)),
    "transposed": lambda: np.zeros((3, 2), np.float16).T,
    "other order": lambda: np.zeros((2, 3), ">f2"),
    "complex": lambda: np.zeros((2, 3), np.complex64),
    "times": lambda: np.zeros((2, 3), "M8[s]"),
    "void": lambda: np.zeros((2, 3), "V4"),
    "record": lambda: np.zeros((2, 3), [("a", "<f4")]),
    "objects": lambda: np.array([[None, 1, "a"], [1j, object(), []]], object),
    "texts": lambda: np.array([["1", "x", ""]] * 2),
    "matrix": lambda: np.zeros((2, 3), np.float16).view(np.matrix),
    "masked": lambda: np.ma.masked_less(x(), 1),
    "recarray": lambda: np.zeros((2, 3), [("a", "<f4")]).view(np.recarray),
    "empty array": lambda: np.zeros((0, 3), np.float16),
    "deep array": lambda: np.zeros((1,) * 64, np.float16),
    "float128": lambda: np.zeros((2, 3), np.longdouble),
}  # fmt: skip
