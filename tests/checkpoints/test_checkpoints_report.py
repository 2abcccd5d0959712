# SPDX-License-Identifier: Apache-2.0
"""The report of a conversion: counts, errors, histograms, worst tensors first; and the memory that it takes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from conversions import numbers
from gpucast import files
from gpucast.checkpoints.losses import counts
from gpucast.checkpoints.losses.statistics import Histogram
from gpucast.cli import main
from gpucast.core.dtypes import DTYPES, DType, dtype
from tensors import ids, sample

pytestmark = pytest.mark.usefixtures("folder")

FLOATS = [row for row in DTYPES if row.family == "float"]


def by_hand(x: np.ndarray) -> dict[int, int]:
    """floor(log2(abs(v))) of finite values other than zero, counted."""
    values = np.abs(x[np.isfinite(x) & (x != 0)].astype(np.float64))
    exponents, numbers = np.unique(np.frexp(values)[1] - 1, return_counts=True)
    return dict(zip(exponents.tolist(), numbers.tolist(), strict=True))


@pytest.mark.parametrize("src", FLOATS, ids=ids)
def test_the_quick_counts_are_those_of_cast_report(src: DType) -> None:
    """Codes of every kind, and numbers that every type can hold, so that nothing is lost."""
    some = gpucast.cast(np.tile(np.array([0.5, -1, 2, 0, -0.0, 1.5], np.float32), 500), src)
    for dst in [*FLOATS, dtype("INT8"), dtype("FLOAT8E8M0"), dtype("BOOL")]:
        for saturate in (True, False):
            for x in (sample(src, (3000,)), some, some[:0]):
                y = gpucast.cast(x, dst, saturate=saturate)
                wanted = replace(gpucast.cast_report(x, dst, saturate=saturate), max_relative_error=0.0)
                found = counts.of_cast(x, y, src, dst, {"saturate": saturate})
                assert replace(found, max_relative_error=0.0) == wanted, (src, dst, saturate)


def test_histograms_count_numbers_of_every_kind(folder: Path) -> None:
    random = np.random.default_rng(0)
    edges = [0, -0.0, np.inf, -np.nan, 5e-324, 2.0**-1022, 1.0, 1.9999, 2.0, np.finfo(np.float64).max]
    x = np.concatenate([random.standard_normal(1000) * 2.0 ** random.integers(-200, 200, 1000), edges])
    np.save("in.npy", x)
    assert main(["convert", "in.npy", "out.npy", "--to", "FLOAT", "--allow-loss", "--report", "r.json", "--quiet"]) == 0
    (tensor,) = json.loads((folder / "r.json").read_text())["tensors"]
    wanted = by_hand(x)
    # What is below the normal numbers is counted together.
    wanted[-1023] = wanted.pop(-1074)
    assert Histogram.from_json(tensor["log2_magnitudes"]["before"]) == Histogram(wanted, zero=2, inf=1, nan=1)


def test_the_report_tells_of_every_tensor(folder: Path) -> None:
    random = np.random.default_rng(3)
    tensors = {
        "good": random.standard_normal(1000).astype(np.float32),
        "lossy": np.array([1e9, 1.0, 1e-9, 0.0], np.float32),
        "worse": (random.standard_normal(1000) * 0.01).astype(np.float32),
        "exact": np.ones(7, np.float32),
        "ids": np.arange(3),
    }
    (folder / "in").mkdir()
    files.save("in/a.safetensors", {name: tensors[name] for name in ("good", "lossy", "ids")})
    files.save("in/b.safetensors", {name: tensors[name] for name in ("exact", "worse")})
    (folder / "in" / "config.json").write_text("{}")
    options = ["--to", "FLOAT8E4M3FN", "--scale", "none", "--allow-loss", "--rule", "i*=keep"]
    assert main(["convert", "in", "out", *options, "--report", "report.json", "--quiet"]) == 0
    document = json.loads((folder / "report.json").read_text())
    assert [tensor["name"] for tensor in document["tensors"]] == ["lossy", "worse", "good", "exact"]
    assert (document["input"], document["output"], document["gpucast"]) == ("in", "out", gpucast.__version__)
    assert document["options"]["rules"] == ["i*=keep"]
    assert (document["options"]["scale"], document["options"]["saturate"]) == ("none", True)
    assert [file["name"] for file in document["files"]] == ["a.safetensors", "b.safetensors", "config.json"]
    assert document["files"][2] == {"name": "config.json", "bytes_in": 2, "copied": True}
    assert document["left_alone"] == [
        {"name": "ids", "file": "a.safetensors", "dtype": "INT64", "shape": [3], "bytes": 24}
    ]
    assert document["total"]["bytes_in"] == 4 * 2011
    assert document["total"]["bytes_out"] == 2011
    for tensor in document["tensors"]:
        x = tensors[tensor["name"]]
        y = gpucast.cast(x, "FLOAT8E4M3FN").astype(np.float64)
        for side, values in (("before", x), ("after", y)):
            found = Histogram.from_json(tensor["log2_magnitudes"][side])
            assert found.counts == by_hand(values)
            assert found.zero == np.count_nonzero(values == 0)
        report = gpucast.cast_report(x, "FLOAT8E4M3FN")
        assert (tensor["saturated"], tensor["underflowed"]) == (report.saturated, report.underflowed)
        assert tensor["max_relative_error"] == report.max_relative_error
        nonzero = x != 0
        errors = np.abs(y - x)[nonzero] / np.abs(x.astype(np.float64))[nonzero]
        assert tensor["mean_relative_error"] == pytest.approx(errors.mean())
        noise = np.sum((y - x.astype(np.float64)) ** 2)
        expected = 10 * math.log10(np.sum(x.astype(np.float64) ** 2) / noise) if noise else None
        assert tensor["sqnr_db"] == (None if expected is None else pytest.approx(expected))


#: Converts under a limit on anonymous memory (heap, stacks, private mappings), and prints the peak.
_LIMITED = """
import resource, sys
from gpucast import cli
limit = int(sys.argv[1]) << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
code = cli.main(["convert", *sys.argv[2:], "--quiet"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
raise SystemExit(code)
"""


def limited(megabytes: int, *argv: str) -> int:
    """Run a conversion with limited memory; returns the peak of resident megabytes."""
    environment = os.environ | {"PYTHONPATH": str(Path(gpucast.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _LIMITED, str(megabytes), *argv]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


def sparse(path: Path, gigabytes: int, tensors: int = 4) -> None:
    """A sparse file of zeros, in rows of 4096."""
    count = (gigabytes << 28) // tensors
    header = {
        f"t{i}": {"dtype": "F32", "shape": [count >> 12, 1 << 12], "data_offsets": [4 * count * i, 4 * count * (i + 1)]}
        for i in range(tensors)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 4 * count * tensors)


def test_a_large_file_takes_little_memory(folder: Path, exhaustive: bool) -> None:
    sparse(folder / "in.safetensors", 1)
    argv = ["in.safetensors", "out.safetensors", "--to", "FLOAT8E4M3FN", "--scale", "none"]
    print(limited(256, *argv), "MiB resident")
    assert (folder / "out.safetensors").stat().st_size >> 20 == 256
    with pytest.raises(AssertionError):
        limited(20, *argv)
    if exhaustive:
        sparse(folder / "in.safetensors", 20, tensors=40)
        jobs = ((["FLOAT8E4M3FN", "--scale", "none"], 5 * 1024), (["INT4", "--scale", "block"], 2720))
        for options, size in jobs:
            (folder / "out.safetensors").unlink()
            resident = limited(256, *argv[:3], *options)
            print(*options, resident, "MiB resident")
            assert resident < 256
            assert (folder / "out.safetensors").stat().st_size >> 20 == size
        (folder / "out.safetensors").unlink()


# ---- what is looked at beside the cast ----


@pytest.mark.parametrize(
    ("options", "compared"),
    [
        # A block of 128x128 stands for 16 pieces of 2^20.
        (["--to", "FLOAT8E4M3FN", "--scale", "block"], 1 << 14),
        (["--to", "FLOAT8E4M3FN", "--scale", "mx"], 4 * 1024),
        (["--to", "FLOAT8E4M3FN", "--scale", "per-tensor"], 4 * 1024),
        (["--to", "BFLOAT16"], 4 * 1024),
    ],
)
def test_verify_compares_a_sample(options: list[str], compared: int, capsys: pytest.CaptureFixture[str]) -> None:
    files.save("in.safetensors", {"w": np.full((2048, 2048), 3, np.float32)})
    capsys.readouterr()
    assert main(["convert", "in.safetensors", "out.safetensors", *options, "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified_elements"] == compared


def report_of(x: np.ndarray[Any, Any], *options: str) -> dict[str, Any]:
    files.save("in.safetensors", {"w": x})
    argv = ["convert", "in.safetensors", "out.safetensors", *options, "--quiet", "--overwrite"]
    assert main([*argv, "--report", "r.json"]) == 0
    (tensor,) = json.loads(Path("r.json").read_text())["tensors"]
    return dict(tensor)


OPTIONS = [["--to", "FLOAT16"], ["--to", "INT4", "--scale", "block"]]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_sample_of_a_large_tensor_is_near_the_whole(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.tile(numbers(512, 512), (4, 4)) + np.linspace(0, 1, 2048, dtype=np.float32)
    sampled = report_of(x, *options)
    assert 0.005 < sampled["examined"] / x.size < 0.01
    monkeypatch.setattr("gpucast.checkpoints.losses.statistics.EXACT", x.size)
    whole = report_of(x, *options)
    assert whole["examined"] == x.size
    # Counts are of all elements.
    for field in ("elements", "nonzero", "saturated", "underflowed", "nan", "infinite"):
        assert sampled[field] == whole[field], field
    assert sampled["sqnr_db"] == pytest.approx(whole["sqnr_db"], abs=0.5)
    assert sampled["mean_relative_error"] == pytest.approx(whole["mean_relative_error"], rel=0.1)
    assert sampled["max_relative_error"] <= whole["max_relative_error"]
