# SPDX-License-Identifier: Apache-2.0
"""Conversions of checkpoints, for the tests: files made, planned, run, and looked at."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import gpucast
from gpucast import convert as conversion
from gpucast import files
from gpucast.cli import main
from gpucast.convert.running.work import UnfinishedWork
from gpucast.convert.scales import scaling
from gpucast.core.dtypes import dtype

ATTRIBUTES = {"saturate": True, "round_mode": "up", "opset": None, "rounding": None, "overflow": None}


# ---- files ----


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-3, 4, shape))).astype(np.float32)


NAMES = {
    "l.weight": numbers(264, 256),
    "l.bias": np.ones(264, np.float32),
    "model.embed_tokens.weight": numbers(10, 256),
}


def save(path: str, tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    files.save(path, tensors, metadata)


#: A tensor of several chunks.
BIG = np.linspace(-1, 1, 1 << 16, dtype=np.float32)


def two(name: str = "in") -> None:
    """A folder of two files, of one tensor each."""
    for shard in "ab":
        save(f"{name}/{shard}.safetensors", {shard: BIG})


def model(tensors: dict[str, Any], **config: Any) -> None:
    """The folder `in`, of one file of tensors and a config.json."""
    save("in/model.safetensors", tensors)
    Path("in/config.json").write_text(json.dumps(config))


def checkpoint(folder: Path | str, shards: Mapping[str, dict[str, Any]], **metadata: Any) -> None:
    """A checkpoint in files of those names, as transformers writes it: with an index, which has the metadata."""
    for name, tensors in shards.items():
        save(f"{folder}/{name}.safetensors", tensors, {"format": "pt"})
    weight_map = {tensor: f"{name}.safetensors" for name, tensors in shards.items() for tensor in tensors}
    index = json.dumps({"metadata": metadata, "weight_map": weight_map})
    Path(folder, "model.safetensors.index.json").write_text(index)


def header(path: str) -> dict[str, tuple[str, list[int]]]:
    """The types and shapes, as the safetensors package tells them."""
    with safe_open(path, "numpy") as file:
        return {name: (part.get_dtype(), part.get_shape()) for name in file.keys() for part in [file.get_slice(name)]}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def quantized(x: Any, to: str, scale: str, **keywords: Any) -> gpucast.Quantized:
    format = scaling.formats(dtype(to))[scale]
    return gpucast.quantize(x, format, axis=0 if format.block == "axis" else -1, **keywords)


# ---- the command ----


def convert(*argv: str) -> int:
    return main(["convert", *argv, "--overwrite", "--quiet"])


def failure(capsys: pytest.CaptureFixture[str], *argv: str, overwrite: bool = True) -> str:
    """What a conversion says that fails: one line, and a second one where it keeps what is finished."""
    capsys.readouterr()
    assert main(["convert", *argv, "--quiet", *["--overwrite"] * overwrite]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1 + ("what is finished is kept in" in printed.err)
    return printed.err


# ---- plans ----


def planned(source: Path | str, target: Path | str, to: str = "FLOAT16", **request: Any) -> conversion.ConversionPlan:
    choice = conversion.Choice(dtype(to))
    return conversion.make_plan(str(source), str(target), conversion.Request(choice, ATTRIBUTES, **request))


def run(plan: conversion.ConversionPlan, advance: Any = lambda done: None, **options: Any) -> conversion.Outcome:
    outcome = conversion.Outcome(plan)
    conversion.run(plan, conversion.Options(**options), outcome, advance)
    return outcome


@contextlib.contextmanager
def begun(plan: conversion.ConversionPlan, **how: bool) -> Iterator[UnfinishedWork]:
    """The work of a process that has begun it, and is killed when the block ends."""
    work = UnfinishedWork(plan)
    work.begin(**how)
    try:
        yield work
    finally:
        work.folder.release()
