# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of other libraries, with their rounding replaced by casts of gpucast; nothing of them is kept here.

A copy of a folder is run twice by pytest, as it is and with the replacements. They are made in the text of tests, or
before these are imported in the library that they test: then this module is a plugin of pytest.
"""

from __future__ import annotations

import ast
import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from bench.peers.outcomes import NDArray, Outcome
from bench.revision import ROOT
from gpucast.core.dtypes import dtype
from gpucast.quantization import RECIPES

_cast: Any = gpucast.cast
#: Calls of the tests that gpucast answered.
ANSWERED: Counter[str] = Counter()

# ---- gfloat ----

_GFLOAT = {
    "ocp_e5m2": "FLOAT8E5M2", "ocp_e4m3": "FLOAT8E4M3FN", "ocp_e3m2": "FLOAT6E3M2", "ocp_e2m3": "FLOAT6E2M3",
    "ocp_e2m1": "FLOAT4E2M1", "binary16": "FLOAT16", "binary32": "FLOAT", "bfloat16": "BFLOAT16",
}  # fmt: skip
_GFLOAT_MODES = {"TiesToEven": None, "TowardZero": "toward_zero", "TowardNegative": "downward",
                 "TowardPositive": "upward", "TiesToAway": "nearest_away"}  # fmt: skip


def round_float(fi: Any, v: float, rnd: Any = None, sat: bool = False, *more: Any, **keywords: Any) -> float:
    """gfloat's function of this name, for the types that gpucast has."""
    import gfloat

    rnd = gfloat.RoundMode.TiesToEven if rnd is None else rnd
    name = _GFLOAT.get(fi.name)
    if name is None or rnd.name not in _GFLOAT_MODES or more or keywords or not (sat or dtype(name).has_nan):
        return float(gfloat.round_float(fi, v, rnd, sat, *more, **keywords))
    ANSWERED["calls"] += 1
    how: dict[str, Any] = {"overflow": "saturate"} if sat else {"saturate": False} if dtype(name).bits == 8 else {}
    found = _cast(np.array(v, np.float64), name, rounding=_GFLOAT_MODES[rnd.name], **how)
    return float(_cast(found, "DOUBLE"))


def round_ndarray(fi: Any, v: NDArray, rnd: Any = None, sat: bool = False, *more: Any, **keywords: Any) -> Any:
    import gfloat

    rnd = gfloat.RoundMode.TiesToEven if rnd is None else rnd
    if _GFLOAT.get(fi.name) is None or rnd.name not in _GFLOAT_MODES or more or keywords:
        return gfloat.round_ndarray(fi, v, rnd, sat, *more, **keywords)
    return np.array([round_float(fi, float(one), rnd, sat) for one in np.ravel(v)]).reshape(np.shape(v))


# ---- NumPy, ml_dtypes, the array API ----


def astype(x: Any, kind: Any, *more: Any, **keywords: Any) -> Any:
    """``x.astype(kind)`` by gpucast where it knows both types, as NumPy has it: without saturation, truncated."""
    try:
        to = np.dtype(kind)
        known = not more and not keywords and type(x) is np.ndarray and {dtype(x.dtype), dtype(to)}
    except (TypeError, ValueError):
        known = False
    if not known or not to.isnative or {x.dtype.kind, to.kind} & set("OSUT") or to != dtype(to).numpy:
        return x.astype(kind, *more, **keywords)
    ANSWERED["calls"] += 1
    return _cast(x, to, saturate=False)


def _functions(text: str) -> str:
    """The text with ``x.astype(kind)`` as a function of both."""

    class Replaced(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
                name = ast.Name("gpucast_astype", ast.Load())
                return ast.copy_location(ast.Call(name, [node.func.value, *node.args], node.keywords), node)
            return node

    head = "from bench.peers.foreign_tests import astype as gpucast_astype\n"
    future = "from __future__ import annotations\n"
    return (
        (future if future in text else "")
        + head
        + ast.unparse(ast.fix_missing_locations(Replaced().visit(ast.parse(text.replace(future, "")))))
    )


def _kind(given: Any) -> Any:
    """The dtype of an array, or of a class of scalars."""
    return np.dtype(given if isinstance(given, type) else getattr(given, "dtype", given))


class _Info:
    """finfo or iinfo of gpucast, with the members that the array API names."""

    def __init__(self, of: Callable[[Any], Any], kind: Any, number: Callable[[Any], Any]) -> None:
        row, info = dtype(_kind(kind)), of(_kind(kind))
        ANSWERED["calls"] += 1
        self.dtype, self.bits = np.dtype(row.numpy), int(info.bits)
        for name in ("eps", "max", "min", "smallest_normal"):
            if hasattr(info, name):
                setattr(self, name, number(getattr(info, name)))


def _array_api() -> None:
    """A module like numpy whose casts and limits are those of gpucast."""
    import types

    module = types.ModuleType("numpy_by_gpucast")
    module.__dict__.update({name: getattr(np, name) for name in dir(np) if not name.startswith("__")})
    finfo = np.finfo
    known = {np.dtype(kind) for kind in ("f4", "f8")}

    def cast(x: Any, kind: Any, /, *, copy: bool = True, device: Any = None) -> Any:
        if {x.dtype.kind, np.dtype(kind).kind} & {"c"} or device is not None:
            return np.astype(x, kind, copy=copy)
        ANSWERED["calls"] += 1
        return _cast(x, kind, saturate=False, copy=copy)

    module.astype = cast  # type: ignore[attr-defined]
    module.finfo = lambda kind: (  # type: ignore[attr-defined]
        _Info(gpucast.finfo, kind, float) if _kind(kind) in known else finfo(kind)
    )
    module.iinfo = lambda kind: _Info(gpucast.iinfo, kind, int)  # type: ignore[attr-defined]
    module.__array_api_version__ = np.__array_api_version__  # type: ignore[attr-defined]
    sys.modules["numpy_by_gpucast"] = module
    os.environ["ARRAY_API_TESTS_MODULE"] = "numpy_by_gpucast"


# ---- quantizers ----


def _codes(x: Any, name: str) -> Any:
    """A tensor's codes of a type, a byte each."""
    import torch

    ANSWERED["calls"] += 1
    numpy = x.detach().to(torch.float32).numpy()
    return torch.from_numpy(np.asarray(_cast(numpy, name)).view(np.uint8).copy())


def _numbers(codes: Any, name: str) -> Any:
    import torch

    ANSWERED["calls"] += 1
    return torch.from_numpy(np.array(_cast(codes.numpy().astype(np.uint8).view(dtype(name).numpy), "FLOAT")))


def _torchao() -> None:
    """Codes of float4 and float6, scales by RCEIL, and blocks of 32 by the recipes of gpucast."""
    import torch
    from torchao.prototype.mx_formats import kernels, mx_tensor

    for kind, name in (("f4", "FLOAT4E2M1"), ("f6_e2m3", "FLOAT6E2M3"), ("f6_e3m2", "FLOAT6E3M2")):
        setattr(kernels, f"f32_to_{kind}_unpacked", lambda x, name=name: _codes(x, name))
        setattr(kernels, f"{kind}_unpacked_to_f32", lambda x, name=name: _numbers(x, name))

    def rceil(x: Any) -> Any:
        ANSWERED["calls"] += 1
        found = [_cast(x.abs().numpy(), "FLOAT8E8M0", saturate=saturate).view(np.uint8) for saturate in (True, False)]
        return torch.from_numpy(np.where(x.abs().numpy() > 1, found[1], found[0]))

    mx_tensor._f32_to_e8m0_rceil = rceil
    theirs = mx_tensor.to_mx
    elements = {torch.float8_e4m3fn: "mxfp8", torch.float4_e2m1fn_x2: "mxfp4"}

    def to_mx(x: Any, kind: Any, block: int, scaling_mode: Any = mx_tensor.ScaleCalculationMode.FLOOR,
              *more: Any, **keywords: Any) -> Any:  # fmt: skip
        recipe = f"torchao-{elements.get(kind)}-{scaling_mode.name.lower()}"
        if more or any(keywords.values()) or block != 32 or recipe not in RECIPES or x.dtype == torch.float16:
            return theirs(x, kind, block, scaling_mode, *more, **keywords)
        ANSWERED["calls"] += 1
        q = gpucast.quantize(x.contiguous(), recipe)
        data = q.data if isinstance(q.data, torch.Tensor) else torch.from_numpy(np.asarray(q.data.data))
        codes, scales = (one.view(torch.uint8).reshape(*x.shape[:-1], -1) for one in (data, q.scales))
        if kind is torch.float8_e4m3fn:
            codes = codes.masked_fill((scales == 255).repeat_interleave(block, -1), 0x7F)
        return scales.view(torch.float8_e8m0fnu), codes.view(kind)

    mx_tensor.to_mx = to_mx


def _compressed_tensors() -> None:
    """Rounding to float8, float4 and integers, and pairs of float4 in bytes."""
    import torch
    from compressed_tensors.compressors.nvfp4 import base, helpers
    from compressed_tensors.quantization import quant_args
    from compressed_tensors.quantization.lifecycle import forward_helpers
    from compressed_tensors.quantization.utils import helpers as scales

    kinds = {torch.float8_e4m3fn: "FLOAT8E4M3FN", torch.float8_e5m2: "FLOAT8E5M2", torch.int8: "INT8"}
    theirs = quant_args.round_to_quantized_type_dtype

    def rounded(tensor: Any, kind: Any, original: Any) -> Any:
        ANSWERED["calls"] += 1
        how = {"rounding": "nearest_even", "overflow": "saturate"} if kind == torch.int8 else {}
        found = gpucast.cast(tensor.detach(), kinds[kind], **how)  # type: ignore[call-overload]
        return gpucast.cast(found, original) if original is not None else found

    def by_dtype(tensor: Any, dtype: Any, cast_to_original_dtype: bool = True) -> Any:
        if dtype not in kinds:
            return theirs(tensor, dtype, cast_to_original_dtype)
        return rounded(tensor, dtype, tensor.dtype if cast_to_original_dtype else None)

    def by_args(tensor: Any, args: Any, min: Any, max: Any, cast_to_original_dtype: bool = True) -> Any:
        original, tensor = tensor.dtype, torch.clamp(tensor, min, max)
        if args.type == quant_args.QuantizationType.INT:
            # A number that is rounded stays one of the type that it had.
            found = rounded(tensor, torch.int8, tensor.dtype) if max < 128 else torch.round(tensor)
        elif args.num_bits == 8:
            found = rounded(tensor, torch.float8_e4m3fn, None)
        else:
            found = four(tensor)
        return found.to(original) if cast_to_original_dtype else found

    def four(x: Any) -> Any:
        return _numbers(_codes(x, "FLOAT4E2M1"), "FLOAT4E2M1").to(x.dtype)

    def packed(x: Any) -> Any:
        if x.shape[-1] % 2:
            raise ValueError("compressed-tensors has whole bytes in each row")
        codes = _codes(x, "FLOAT4E2M1").reshape(*x.shape[:-1], -1, 2)
        return codes[..., 0] | codes[..., 1] << 4

    for module in (quant_args, scales):
        module.round_to_quantized_type_dtype = by_dtype
    for module in (quant_args, forward_helpers):
        module.round_to_quantized_type_args = by_args
    for module in (base, helpers):
        module.pack_fp4_to_uint8 = packed
    quant_args.FP4_E2M1_DATA.cast_to_fp4 = staticmethod(four)


# ---- the suites ----


@dataclass(frozen=True)
class Suite:
    """Tests in a folder."""

    files: tuple[str, ...]
    licence: str
    kind: str = "casts"
    #: What makes the text of a test another; what replaces functions of the library.
    rewrite: Callable[[str], str] = str
    replace: Callable[[], None] | None = None
    #: What is replaced in the text in both runs: a pattern and its replacement.
    always: tuple[tuple[str, str], ...] = ()
    #: Arguments of pytest, and a folder of the copy from which modules are imported.
    arguments: tuple[str, ...] = ()
    path: str = "."
    #: Files that the copy lacks.
    more: tuple[tuple[str, str], ...] = ()
    #: What the replacements leave out.
    note: str = ""


def _gfloat(text: str) -> str:
    head = "from bench.peers.foreign_tests import round_float, round_ndarray\n"
    return re.sub(r"(from gfloat\.formats import \*\n)", r"\1" + head, text, count=1)


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


_NUMPY = ("casting_unittests", "casting_floatingpoint_errors", "half", "numeric", "array_coercion")
_CPU = ((r"not torch\.cuda\.is_available\(\)", "False"), ('device="cuda"', 'device="cpu"'))
_COMPRESSORS = ("fp4", "fp8", "mxfp4", "mxfp8")
SUITES = {
    "gfloat": Suite(("test_round.py",), "MIT", rewrite=_gfloat),
    "ml_dtypes": Suite(("custom_float_test.py", "intn_test.py"), "Apache-2.0", rewrite=_functions),
    "numpy": Suite(tuple(f"test_{name}.py" for name in _NUMPY), "BSD-3-Clause", rewrite=_functions),
    "array-api-tests": Suite(
        ("array_api_tests/test_data_type_functions.py",), "MIT", replace=_array_api,
    ),
    "torchao": Suite(
        ("test/prototype/mx_formats/test_kernels.py", "test/prototype/mx_formats/test_mx_tensor.py"), "BSD-3-Clause",
        "quantizers", replace=_torchao, always=_CPU, arguments=("-k", "not compile and not cuda and not triton"),
        note="codes under a scale of NaN are 0 here, and were filled with NaN as there",
    ),
    "compressed-tensors": Suite(
        (*_in("tests/test_quantization", "lifecycle/test_forward.py", "test_utils"),
         *_in("tests/test_compressors", *(f"test_{name}_quant.py" for name in _COMPRESSORS))),
        "Apache-2.0", "quantizers", replace=_compressed_tensors, path="src",
        more=(("src/compressed_tensors/version.py", '__version__ = version = "0"\n'),),
    ),
}  # fmt: skip

#: Tests that fail with gpucast, by a pattern of their names, and why they may.
_LEGAL = {
    r"float8_e8m0fnu": "FLOAT8E8M0 is rounded up here, negative numbers to 0; by ml_dtypes to nearest, and to NaN",
    r"Predicate.*fnuz": "the NaN of FNUZ types has no sign here",
    r"test_floatingpoint_errors_casting": "casts here give no warnings of floating-point errors",
    r"int_coerce_does_not_cast|test_filled_like": "NaN and infinity to integers are 0 here, and undefined in NumPy",
}


def foreign_tests(name: str, folder: Path, version: str) -> Outcome:
    """Run the tests in a folder as they are, and again with what they test replaced."""
    suite = SUITES[name]
    before, _ = _failures(name, folder, replaces=False)
    failed, (ran, calls) = _failures(name, folder, replaces=True)
    before &= failed
    failed -= before
    legal = {test for test in failed for pattern in _LEGAL if re.search(pattern, test)}
    why = [f"{calls:,} calls of the tests were answered by gpucast"]
    why += [text for pattern, text in _LEGAL.items() if any(re.search(pattern, test) for test in legal)]
    why += [suite.note] * bool(suite.note)
    why += [f"{len(before)} fail without it, too"] * bool(before)
    wrong = sorted(failed - legal)
    version = version or metadata.version(name)
    return Outcome(
        f"{name}'s tests", version, suite.kind, ran - len(before), len(wrong), len(legal), "; ".join(why),
        ", ".join(wrong), suite.licence,
    )  # fmt: skip


def _failures(name: str, folder: Path, *, replaces: bool) -> tuple[set[str], tuple[int, int]]:
    """The names of failed tests; how many ran, and how many of their calls gpucast answered."""
    suite = SUITES[name]
    with tempfile.TemporaryDirectory() as place:
        where = Path(place, name)
        shutil.copytree(folder, where, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        for file, text in suite.more:
            Path(where, file).parent.mkdir(exist_ok=True)
            Path(where, file).write_text(text, encoding="utf-8")
        for path in (where / file for file in suite.files if file.endswith(".py")):
            text = path.read_text(encoding="utf-8")
            for pattern, to in suite.always:
                text = re.sub(pattern, to, text)
            path.write_text(suite.rewrite(text) if replaces else text, encoding="utf-8")
        answered, junit = Path(place, "answered"), Path(place, "junit.xml")
        given = os.environ.get("PYTHONPATH", "")
        paths = os.pathsep.join(map(str, (ROOT, where / suite.path, where, *given.split(os.pathsep))))
        environment = {"ARRAY_API_TESTS_MODULE": "numpy", **os.environ, "PYTHONPATH": paths}
        environment["GPUCAST_ANSWERED"] = str(answered)
        plugin = []
        if replaces and suite.replace:
            environment["GPUCAST_REPLACES"] = name
            plugin = ["-p", "bench.peers.foreign_tests"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, f"--rootdir={where}",
                   f"--junitxml={junit}", *suite.arguments, *suite.files]  # fmt: skip
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
        # Without a report, or with an error before the first test.
        if not junit.exists() or done.returncode not in (0, 1):
            raise RuntimeError(f"{name}: its tests did not run: {(done.stdout + done.stderr)[-2000:]}")
        tests = list(ElementTree.parse(junit).iter("testcase"))
        calls = sum(map(int, answered.read_text().split())) if answered.exists() else 0
    failed = {
        f"{test.get('classname')}.{test.get('name')}"
        for test in tests
        if test.find("failure") is not None or test.find("error") is not None
    }
    return failed, (sum(test.find("skipped") is None for test in tests), calls)


def pytest_load_initial_conftests() -> None:
    """As a plugin: replace what the tests of the named suite import."""
    replace = SUITES[os.environ["GPUCAST_REPLACES"]].replace
    if replace:
        replace()


def _tell() -> None:
    path = os.environ.get("GPUCAST_ANSWERED")
    if path and ANSWERED:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{ANSWERED['calls']}\n")


atexit.register(_tell)
