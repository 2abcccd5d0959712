# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.entered``: the Python functions of gpucast that each kind of call enters, and in how many files.

Time is noisy, these counts are not: they say how much a reader has to follow. Devices are those of `idle_cuda`.
Rows of tensors need PyTorch. ``--list ROW`` shows the functions of a row.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from bench import idle_cuda
from gpucast.casting import plans

_FOLDER = str(Path(gpucast.__file__).parent)
Call = Callable[[], Any]


def functions(call: Call) -> list[tuple[str, str]]:
    """The Python functions of gpucast that a call enters, in order: file and name."""
    found: list[tuple[str, str]] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_FOLDER):
            found.append((frame.f_code.co_filename[len(_FOLDER) + 1 :], frame.f_code.co_name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def entered(call: Call) -> tuple[int, int]:
    """How many functions a call enters, and in how many files."""
    found = functions(call)
    return len(found), len({file for file, _ in found})


def rows() -> dict[str, tuple[Call, bool]]:
    """Calls by name, and whether each is to be the first of its kind. Within `idle_cuda.idle`."""
    x, there = np.ones(64, np.float32), idle_cuda.array((64,), np.float32)
    blocks, blocks_there = np.ones((4, 64), np.float32), idle_cuda.array((4, 64), np.float32)
    many = [np.ones(64, np.float32) for _ in range(10)]
    many_there = [idle_cuda.array((64,), np.float32) for _ in range(10)]
    cast, quantize, cast_many = gpucast.cast, gpucast.quantize, gpucast.cast_many
    found: dict[str, tuple[Call, bool]] = {
        "NumPy, again": (lambda: cast(x, "FLOAT8E4M3FN"), False),
        "NumPy, first": (lambda: cast(x, "FLOAT8E4M3FN"), True),
        "CuPy, first": (lambda: cast(there, "FLOAT8E4M3FN"), True),
        "quantize, again": (lambda: quantize(blocks, "mxfp8e4m3"), False),
        "quantize on a device, again": (lambda: quantize(blocks_there, "mxfp8e4m3"), False),
        "cast_many, again": (lambda: cast_many(many, "FLOAT16"), False),
        "cast_many on a device, again": (lambda: cast_many(many_there, "FLOAT16"), False),
    }
    if importlib.util.find_spec("torch") is not None:
        import torch

        t = torch.ones(64)
        found["torch, again"] = (lambda: cast(t, "FLOAT8E4M3FN"), False)
        found["torch, first"] = (lambda: cast(t, "FLOAT8E4M3FN"), True)
    return found


@contextmanager
def measured() -> Iterator[dict[str, Call]]:
    """The calls by name, each ready to be counted when it is next made."""
    with idle_cuda.idle(allocate=idle_cuda.fresh):
        ready: dict[str, Call] = {}
        for name, (call, first) in rows().items():

            def one(call: Call = call, first: bool = first) -> list[tuple[str, str]]:
                # What a process does once, such as imports and kernels, is not of the call.
                call()
                call()
                if first:
                    plans.forget()
                return functions(call)

            ready[name] = one
        yield ready


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", metavar="ROW", help="show the functions of a row")
    arguments = parser.parse_args()
    with measured() as calls:
        for name, call in calls.items():
            if arguments.list in (None, name):
                found = call()
                print(f"{name:32}{len(found):4} functions{len({file for file, _ in found}):4} files")
                if arguments.list:
                    print(*(f"  {file}: {function}" for file, function in found), sep="\n")


if __name__ == "__main__":
    main()
