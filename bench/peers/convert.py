# SPDX-License-Identifier: Apache-2.0
"""``gpucast convert`` compared with the same job written with safetensors.numpy and ml_dtypes, and with torch.

With --scale the others use the plain formula, a line for each step; gpucast rounds the exact quotient once, as the
semantics require. The formula rounds quotients twice: about one in a million is a midpoint of two codes after rounding
to FLOAT, and may then go to the wrong code (of BFLOAT16 numbers one in a thousand). Scales with zero points, which come
from a difference, are rounded twice too. The last column shows how many bytes of the last tensor differ.

    python -m bench.peers.convert --torch-python PYTHON --json bench/results/convert-DATE.json

Every contender is a process of its own, and each round runs all of them, one after the other, so that a neighbour on
the machine disturbs all alike; a job's time is that of its fastest round, from the first byte read to the last one
written, without imports. By default the files are in memory (/dev/shm), because the disk is not to be measured and only
gpucast syncs what it writes; --folder chooses another place. Memory is the peak beyond the interpreter and imports,
counting anonymous pages but no mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tqdm import tqdm

import gpucast
from bench.revision import ROOT, machine
from gpucast import files
from gpucast.arrays.bitpacking import pack_codes

#: Names of types, of gpucast and of the others; what --scale says.
JOBS = [
    ("FLOAT", "BFLOAT16", "bfloat16", "none"),
    ("FLOAT", "FLOAT16", "float16", "none"),
    ("FLOAT", "FLOAT8E4M3FN", "float8_e4m3fn", "none"),
    ("BFLOAT16", "FLOAT", "float32", "none"),
    ("BFLOAT16", "FLOAT8E4M3FN", "float8_e4m3fn", "none"),
    ("FLOAT", "FLOAT8E4M3FN", "float8_e4m3fn", "per-channel"),
    ("FLOAT", "FLOAT8E4M3FN", "float8_e4m3fn", "block"),
    ("FLOAT", "FLOAT8E4M3FN", "float8_e4m3fn", "mx"),
    ("BFLOAT16", "FLOAT8E4M3FN", "float8_e4m3fn", "block"),
    ("FLOAT", "INT8", "int8", "per-channel"),
    ("FLOAT", "INT4", "int4", "block"),
    ("FLOAT", "UINT4", "uint4", "block"),
]
#: Of the 16 tensors.
COLUMNS = 4096

_TIMED = """
import json, sys, time
src, dst, to, scale = sys.argv[1:]
{imports}
print("ready", flush=True)
sys.stdin.readline()
wall, cpu = time.perf_counter(), time.process_time()
{work}
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
"""

#: The plain formulas: a scale is the largest magnitude of its block divided by the largest number of the type, or for
#: "mx" the power of two that brings it below 512; unsigned integers have zero points. 4-bit codes lie two to a byte.
_FORMULAS = """
def blocks(x, to, scale):
    rows, columns = x.shape
    if scale == "block" and "int" in to:
        return x.reshape(rows, columns // 128, 128), (2,)
    if scale == "block":
        return x.reshape(rows // 128, 128, columns // 128, 128), (1, 3)
    return (x.reshape(rows, columns // 32, 32), (2,)) if scale == "mx" else (x, (1,))

def pairs(codes):
    return (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)

largest_of = {"int8": 127, "int4": 7, "float8_e4m3fn": 448}
"""
_NUMPY = (
    _FORMULAS
    + """
def quantized(x, to, scale):
    parts, axes = blocks(x.astype(np.float32, copy=False), to, scale)
    if to == "uint4":
        low = np.minimum(parts.min(axes, keepdims=True), 0)
        scales = (np.maximum(parts.max(axes, keepdims=True), 0) - low) / np.float32(15)
        zero_points = np.clip(-np.rint(low / scales), 0, 15)
        codes = np.clip(np.rint(parts / scales) + zero_points, 0, 15).astype(np.uint8)
        return {"": pairs(codes.reshape(x.shape)), ".scales": scales, ".zero_points": zero_points.astype(np.uint8)}
    limit = largest_of[to]
    largest = np.abs(parts).max(axes, keepdims=True)
    if scale == "mx":
        scales = np.ldexp(np.float32(1), np.frexp(largest)[1] - 9)
        kept = scales.astype(ml_dtypes.float8_e8m0fnu)
    else:
        kept = scales = largest / np.float32(limit)
    quotients = parts / scales
    if "int" in to:
        codes = np.clip(np.rint(quotients), -limit, limit).astype(np.int8).reshape(x.shape)
        return {"": pairs(codes.view(np.uint8)) if to == "int4" else codes, ".scales": kept}
    codes = np.clip(quotients, -limit, limit).astype(ml_dtypes.float8_e4m3fn)
    return {"": codes.reshape(x.shape), ".scales": kept}
"""
)
_TORCH = (
    _FORMULAS
    + """
def quantized(x, to, scale):
    parts, axes = blocks(x.float(), to, scale)
    if to == "uint4":
        low = parts.amin(axes, keepdim=True).clamp_(max=0)
        scales = (parts.amax(axes, keepdim=True).clamp_(min=0) - low) / 15
        zero_points = (low / scales).round_().neg_().clamp_(0, 15)
        codes = (parts / scales).round_().add_(zero_points).clamp_(0, 15).to(torch.uint8)
        return {"": pairs(codes.reshape(x.shape)), ".scales": scales, ".zero_points": zero_points.to(torch.uint8)}
    limit = largest_of[to]
    largest = parts.abs().amax(axes, keepdim=True)
    if scale == "mx":
        scales = torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1] - 9)
        kept = scales.to(torch.float8_e8m0fnu)
    else:
        kept = scales = largest / limit
    quotients = parts / scales
    if "int" in to:
        codes = quotients.round_().clamp_(-limit, limit).to(torch.int8).reshape(x.shape)
        return {"": pairs(codes.view(torch.uint8)) if to == "int4" else codes, ".scales": kept}
    codes = quotients.clamp_(-limit, limit).to(torch.float8_e4m3fn)
    return {"": codes.reshape(x.shape), ".scales": kept}
"""
)
_WORK = """
done = {{}}
for name, x in st.load_file(src).items():
    if scale == "none":
        done[name] = {cast}
    else:
        done |= {{name + part: array for part, array in quantized(x, to, scale).items()}}
st.save_file(done, dst)
"""

CONTENDERS = {
    "gpucast": _TIMED.format(
        imports="import gpucast.cli, gpucast.checkpoints",
        work="assert gpucast.cli.main(['convert', src, dst, '--to', to, '--scale', scale, '--overwrite', "
        "'--quiet']) == 0",
    ),
    "safetensors.numpy": _TIMED.format(
        imports="import ml_dtypes, numpy as np, safetensors.numpy as st" + _NUMPY,
        work=_WORK.format(cast="x.astype(to)"),
    ),
    "torch": _TIMED.format(
        imports="import torch, safetensors.torch as st" + _TORCH,
        work=_WORK.format(cast="x.to(getattr(torch, to))"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers.convert", description="Conversion of files beside others."
    )
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the input as FLOAT (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--torch-python", help="a Python with torch and safetensors; without it torch is left out")
    parser.add_argument("--folder", type=Path, default="/dev/shm", help="where the files are (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = measure(Path(folder), arguments)
    show(rows)
    if arguments.json is not None:
        figures = {
            "machine": machine() | {"cpus": os.cpu_count(), "gpucast": gpucast.__version__},
            "megabytes": arguments.megabytes,
            "rounds": arguments.rounds,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """For each job and contender the fastest round: seconds, processor seconds, MiB of memory."""
    count = arguments.megabytes << 18
    sources = {"FLOAT": np.float32, "BFLOAT16": ml_dtypes.bfloat16}
    x = np.random.default_rng(0).standard_normal((count // 16 // COLUMNS, COLUMNS), np.float32)
    for name, kind in sources.items():
        tensors = {f"layers.{i}.weight": x.astype(kind) for i in range(16)}
        files.save(str(folder / f"{name}.safetensors"), tensors)
    del tensors
    pythons = {"gpucast": sys.executable, "safetensors.numpy": sys.executable}
    if arguments.torch_python:
        pythons["torch"] = arguments.torch_python
    rows = []
    for src, dst, other_name, scale in tqdm(JOBS, disable=None):
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in pythons}
        written: dict[str, dict[str, bytes]] = {}
        for _ in range(arguments.rounds):
            for name, python in pythons.items():
                to = dst if name == "gpucast" else other_name
                source, target = folder / f"{src}.safetensors", folder / "out.safetensors"
                target.unlink(missing_ok=True)
                found[name].append(run(python, CONTENDERS[name], str(source), str(target), to, scale))
                with files.TensorFile(str(target)) as file:
                    last = [tensor for tensor in file.tensors if tensor.name.startswith("layers.15.")]
                    written[name] = {tensor.name: _stored(tensor) for tensor in last}
        for name, others in found.items():
            seconds, cpu, memory = (min(column) for column in zip(*others, strict=True))
            differ = _different(written[name], written["gpucast"])
            rows.append(
                {"src": src, "dst": dst, "scale": scale, "contender": name, "seconds": seconds, "cpu_seconds": cpu}
                | {"memory_mib": memory, "different_bytes": differ}
            )
    return rows


def _stored(tensor: files.Tensor) -> bytes:
    """The bytes of a tensor as stored in the file."""
    codes = tensor.read().view(np.uint8).reshape(-1)
    assert tensor.dtype is not None
    return bytes(pack_codes(codes, tensor.dtype.bits) if tensor.dtype.packed else codes)


def _different(found: dict[str, bytes], wanted: dict[str, bytes]) -> int | None:
    """How many bytes differ; None if the tensors have other names or sizes."""
    if {name: len(data) for name, data in found.items()} != {name: len(data) for name, data in wanted.items()}:
        return None
    return sum(
        int(np.count_nonzero(np.frombuffer(found[name], np.uint8) != np.frombuffer(data, np.uint8)))
        for name, data in wanted.items()
    )


def run(python: str, text: str, *argv: str) -> tuple[float, float, float]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [python, "-c", text, *argv]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if not child.stdout.readline():
            raise RuntimeError(f"bench.peers.convert: {python} cannot import what the contender needs")
        base = _anonymous(child.pid)
        highest = [base]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.005):
                highest.append(_anonymous(child.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        child.stdin.write("\n")
        child.stdin.flush()
        told = child.stdout.readline()
        done.set()
        watcher.join()
    if child.returncode:
        raise RuntimeError(f"bench.peers.convert: {command[0]} ended with {child.returncode}")
    seconds, cpu = json.loads(told)
    return seconds, cpu, (max(highest) - base) / 1024


def _anonymous(process: int) -> int:
    try:
        with open(f"/proc/{process}/status", encoding="ascii") as status:
            return next((int(line.split()[1]) for line in status if line.startswith("RssAnon")), 0)
    except OSError:
        return 0


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'from':10}{'to':14}{'scale':13}{'':20}{'seconds':>9}{'CPU s':>8}{'MiB':>8}  bytes unlike gpucast's")
    for row in rows:
        print(
            f"{row['src']:10}{row['dst']:14}{row['scale']:13}{row['contender']:20}{row['seconds']:>9.2f}{row['cpu_seconds']:>8.2f}"
            f"{row['memory_mib']:>8.0f}  {row['different_bytes']}"
        )


if __name__ == "__main__":
    sys.exit(main())
