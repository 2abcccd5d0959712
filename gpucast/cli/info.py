# SPDX-License-Identifier: Apache-2.0
"""`gpucast info`: shows versions, devices, the cache and missing parts, and gives a verdict from a test cast."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gpucast.core import extension
from gpucast.core.version import __version__
from gpucast.kernel import cxx, nvidia
from gpucast.kernel import devices as device
from gpucast.kernel.cache import cache_folder, writable
from gpucast.kernel.cache import problem as cache_problem
from gpucast.parity import self_test
from gpucast.parity.self_test import Comparison, Compilation, Problem

_REQUIRED = ("numpy", "ml_dtypes")
#: What each optional package is for, and the command that installs it.
_OPTIONAL = {
    "onnx": (".pb files, gpucast.interop.onnx", "pip install 'gpucast[onnx]'"),
    "tqdm": ("progress bars", "pip install tqdm"),
}
#: Libraries whose arrays, tensors and models are taken where they are installed.
_OTHERS = ("torch", "jax", "dask", "onnxruntime")
#: The CuPy wheel of each CUDA major, and the extra that installs it.
_CUPY = {"cupy-cuda12x": "cuda12", "cupy-cuda13x": "cuda13"}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "info",
        help="show versions, devices and what is missing",
        description="Show versions, devices, the cache, and what is missing. The last line says whether casts run on a "
        "GPU. To find out, the command compiles a cast, runs it there and compares it with the reference.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    facts = collect()
    print(json.dumps(facts, indent=1) if args.json else _as_text(facts))
    return 0


def collect() -> dict[str, Any]:
    """Everything that the command prints, for JSON."""
    found = nvidia.find()
    cupy = {name: version for name in ("cupy", *_CUPY) if (version := _version(name)) is not None}
    folder = cache_folder()
    compiled = self_test.compilation(() if found is None else found.capabilities)
    compared, problem = _test_cast(found, compiled)
    return {
        "gpucast": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in (*_REQUIRED, *_OPTIONAL, *_OTHERS)},
        "cupy": cupy,
        "driver": None if found is None else {"cuda": list(found.cuda), "problem": found.problem or None},
        "devices": [] if found is None else list(found.devices),
        "compiler": _facts(compiled),
        "host_compiler": _host_compiler(),
        "self_test": _facts(compared),
        "cache": {"folder": folder, "exists": os.path.isdir(folder), "writable": writable(folder)},
        "host_casts": extension.status(),
        "advice": [*_cupy_advice(cupy, found), *_package_advice()],
        "gpu_casts": problem is None,
        "verdict": _verdict(problem),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _host_compiler() -> str | None:
    """The command of the C++ compiler that makes the host's library; None without one."""
    try:
        return shlex.join(cxx.find("info"))
    except cxx.CompilerMissing:
        return None


def _cupy_advice(cupy: Mapping[str, str], found: nvidia.DriverInfo | None) -> list[str]:
    """Advice on CuPy. Each extra is for one CUDA major version, as both CuPy wheels install the same files."""
    extra = nvidia.extra(None if found is None else found.cuda)
    wheels = [name for name in _CUPY if name in cupy]
    if len(wheels) > 1:
        both = " and ".join(wheels)
        remove = f"pip uninstall -y {' '.join(wheels)}"
        return [f"{both} are both installed and overwrite each other: {remove}, then pip install 'gpucast[{extra}]'"]
    if found is None or not found.devices:
        return []
    if not cupy:
        return [f"cupy is not installed (arrays on the GPU): pip install 'gpucast[{extra}]'"]
    if "cupy-cuda13x" in cupy and found.cuda < (13, 0):
        remedy = "pip uninstall -y cupy-cuda13x, then pip install 'gpucast[cuda12]'"
        return [
            f"cupy-cuda13x needs a driver for CUDA 13, this one runs {_cuda(found.cuda)}: {remedy}, or a newer driver"
        ]
    return []


def _package_advice() -> list[str]:
    return [
        f"{name} is not installed ({purpose}): {command}"
        for name, (purpose, command) in _OPTIONAL.items()
        if _version(name) is None
    ]


def _test_cast(found: nvidia.DriverInfo | None, compiled: Compilation) -> tuple[Comparison | None, Problem | None]:
    """The result of a test cast on the GPU, if one can run, and why casts cannot run on a GPU."""
    try:
        unavailable = device.unavailable()
    except Exception as error:
        return None, self_test.broken(error, None if found is None else found.cuda)
    if unavailable is not None:
        problem = Problem(*unavailable)
        if problem.remedy != "run gpucast info":
            return None, problem
        # The advice would be to run this very command.
        return None, compiled.problem or Problem(problem.reason, "run nvidia-smi")
    if compiled.problem is not None:
        return None, compiled.problem
    # One device of each compute capability: equal ones run the same kernel, and a first cast takes a while.
    capabilities = () if found is None else found.capabilities
    compared = self_test.comparison(sorted(map(capabilities.index, set(capabilities))) or [0])
    return compared, compared.problem


def _facts(tried: Compilation | Comparison | None) -> dict[str, Any] | None:
    if tried is None:
        return None
    return asdict(tried) | {"problem": None if tried.problem is None else _clause(tried.problem)}


def _clause(problem: Problem) -> str:
    return "; ".join(filter(None, problem))


def _verdict(problem: Problem | None) -> str:
    return "GPU casts: yes" if problem is None else f"GPU casts: no, because {_clause(problem)}"


def _compiler(facts: Mapping[str, Any]) -> str:
    if facts["problem"] is not None:
        return str(facts["problem"])
    first, last = facts["architectures"][0], facts["architectures"][-1]
    return f"NVRTC {'.'.join(map(str, facts['version']))} compiles for sm_{first} to sm_{last}"


def _self_test(facts: Mapping[str, Any]) -> str:
    if facts["problem"] is not None:
        return str(facts["problem"])
    devices = ", ".join(f"cuda:{index}" for index in facts["devices"])
    return f"{self_test.PAIR} on {devices}: {facts['elements']:,} elements as in the reference"


def _cuda(version: Any) -> str:
    return f"CUDA {version[0]}.{version[1]}"


def _as_text(facts: Mapping[str, Any]) -> str:
    found, cache = facts["driver"], facts["cache"]
    lines = {
        "gpucast": facts["gpucast"],
        "python": f"{facts['python']} ({facts['platform']})",
        **{name: version or "not installed" for name, version in facts["packages"].items()},
        "cupy": ", ".join(f"{name} {version}" for name, version in facts["cupy"].items()) or "not installed",
        "driver": "no NVIDIA driver" if found is None else f"runs up to {_cuda(found['cuda'])}",
        "devices": ", ".join(facts["devices"]) or (found or {}).get("problem") or "none",
        "compiler": _compiler(facts["compiler"]),
        "C++ compiler": facts["host_compiler"] or "none",
        **({} if facts["self_test"] is None else {"self-test": _self_test(facts["self_test"])}),
        "cache": cache["folder"]
        + ("" if cache["writable"] else " (cannot be written: kernels will be kept in memory only)")
        + (f" (not used: {why}; kernels are kept in memory only)" if (why := cache_problem(cache["folder"])) else ""),
    }
    lines["host casts"] = facts["host_casts"]
    width = max(map(len, lines))
    text = [f"{name:<{width}}  {value}" for name, value in lines.items()]
    return "\n".join([*text, *(f"- {advice}" for advice in facts["advice"]), facts["verdict"]])
