# SPDX-License-Identifier: Apache-2.0
"""The report of a conversion: counts, errors, histograms, worst tensors first; and the memory that it takes."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpucast
from bench.peers import convert as benchmark
from gpucast import files
from gpucast.checkpoints.losses import counts
from gpucast.checkpoints.losses.statistics import Errors, Histogram, Statistics
from gpucast.cli import main
from gpucast.core.dtypes import DTYPES, DType, dtype
from tensors import ids, sample

FLOATS = [row for row in DTYPES if row.family == "float"]


def by_hand(x: np.ndarray) -> dict[int, int]:
    """floor(log2(abs(v))) of finite values other than zero, counted."""
    values = np.abs(x[np.isfinite(x) & (x != 0)].astype(np.float64))
    exponents, numbers = np.unique(np.frexp(values)[1] - 1, return_counts=True)
    return dict(zip(exponents.tolist(), numbers.tolist(), strict=True))


def test_histograms_count_powers_of_two() -> None:
    random = np.random.default_rng(0)
    x = np.concatenate(
        [random.standard_normal(1000) * 2.0 ** random.integers(-200, 200, 1000), [0, -0.0, np.inf, -np.nan]]
    )
    found = Histogram()
    for piece in np.array_split(x, 7):
        found.add(np.ascontiguousarray(piece))
    assert found == Histogram(by_hand(x), zero=2, inf=1, nan=1)
    assert Histogram.from_json(json.loads(json.dumps(found.as_json()))) == found
    document = found.as_json()
    assert sum(document["counts"]) == 1000
    assert document["counts"][0] == found.counts[document["lowest"]] > 0
    edges = Histogram()
    edges.add(np.array([5e-324, 2.0**-1022, 1.0, 1.9999, 2.0, np.finfo(np.float64).max]))
    assert edges.counts == {-1023: 1, -1022: 1, 0: 2, 1: 1, 1023: 1}
    assert Histogram().as_json() == {"lowest": 0, "counts": [], "zero": 0, "inf": 0, "nan": 0}


def test_errors_are_what_numpy_gives() -> None:
    x = np.random.default_rng(1).standard_normal(100_000)
    y = x.astype(np.float16).astype(np.float64)
    x[:3], y[:3] = (np.nan, np.inf, 1.0), (0.0, np.inf, np.inf)
    errors = Errors()
    for part in (slice(0, 10), slice(10, 70_000), slice(70_000, None)):
        errors.add(x[part], y[part])
    x, y = x[3:], y[3:]
    assert errors.compared == x.size
    assert errors.mean_relative_error == pytest.approx(np.mean(np.abs(y - x) / np.abs(x)))
    assert errors.largest == np.abs(y - x).max()
    assert errors.sqnr_db == pytest.approx(10 * math.log10(np.sum(x**2) / np.sum((x - y) ** 2)))
    exact = Errors()
    exact.add(np.array([0.0, 2.0]), np.array([0.0, 2.0]))
    assert (exact.sqnr_db, exact.mean_relative_error, exact.compared) == (None, 0.0, 1)


def test_a_record_comes_back() -> None:
    found = Statistics(errors=Errors())
    x = np.array([1e30, 1e-30, 0.1, np.inf], np.float32)
    found.report = gpucast.cast_report(x, "FLOAT8E5M2")
    found.examine(x, gpucast.cast(x, "FLOAT8E5M2"), 0.5)
    assert Statistics.from_record(json.loads(json.dumps(found.as_record()))) == found
    plain = Statistics(gpucast.cast_report(x, "INT8"))
    assert Statistics.from_record(json.loads(json.dumps(plain.as_record()))) == plain


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


def test_the_quick_counts_of_what_holds_all_but_is_told_to_clamp() -> None:
    x = np.array([1, np.inf, -np.inf, 0, np.nan], np.float32).astype(dtype("BFLOAT16").numpy)
    for more in ({}, {"overflow": "saturate"}):
        found = counts.of_cast(x, gpucast.cast(x, "FLOAT", **more), dtype("BFLOAT16"), dtype("FLOAT"), more)
        assert replace(gpucast.cast_report(x, "FLOAT", **more), max_relative_error=0.0) == found
        assert found.saturated == 2 * len(more)


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


def test_reports_of_other_types(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Integers, packed codes, text and special values have statistics as well, and JSON that every reader takes."""
    np.savez(
        "in.npz", a=np.array([np.nan, np.inf, 1e300, 0]), b=np.array([3, -300]), t=np.array(["1.5", "2"]), e=np.zeros(0)
    )
    rules = ["--rule", "b=INT4", "--rule", "t=FLOAT", "--rule", "a=FLOAT4E2M1"]
    options = ["--scale", "none", "--allow-loss", "--quiet", "--report", "r.json"]
    assert main(["convert", "in.npz", "out.npz", "--to", "STRING", *rules, *options]) == 0

    def no_constants(text: str) -> float:
        raise AssertionError(text)

    document = json.loads((folder / "r.json").read_text(), parse_constant=no_constants)
    found = {tensor["name"]: tensor for tensor in document["tensors"]}
    assert (found["a"]["saturated"], found["a"]["nan_lost"]) == (2, 1)
    assert found["b"]["wrapped"] == 1
    assert found["b"]["log2_magnitudes"]["before"]["lowest"] == 1
    assert found["t"]["to"] == "FLOAT"
    assert found["e"]["elements"] == 0
    assert main(["convert", "in.npz", "o.npz", "--to", "FLOAT", "--report", "no/r.json"]) == 1
    assert capsys.readouterr().err == "gpucast convert: no/r.json: No such file or directory\n"
    assert not (folder / "o.npz").exists()


@pytest.mark.parametrize("row", [row for row in DTYPES if row.family != "string"], ids=ids)
def test_verify_agrees_with_every_type(row: DType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounding = ["--rounding", "nearest_even"] if row.family == "int" else []
    files.save("in.npz", {"x": sample(dtype("FLOAT"), (40, 40)), "t": np.array(["a", "b"]), "k": np.arange(5)})
    common = ["--to", row.name, "--scale", "none", "--allow-loss", "--exclude", "t", "--rule", "k=keep", *rounding]
    assert main(["convert", "in.npz", "out.npz", *common, "--verify", "all"]) == 0
    assert "verified: 1,607 elements are what the reference gives" in capsys.readouterr().out
    assert main(["convert", "in.npz", "out.npz", *common, "--overwrite", "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified_elements"] == 1024 + 5 + 2


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


def test_the_benchmark_compares_the_same_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A plain cast and two scaled ones.
    monkeypatch.setattr(benchmark, "JOBS", [benchmark.JOBS[i] for i in (0, 7, -2)])
    arguments = argparse.Namespace(megabytes=1, rounds=1, torch_python=None)
    rows = benchmark.measure(folder, arguments)
    assert [row["contender"] for row in rows] == 3 * ["gpucast", "safetensors.numpy"]
    for row in rows:
        assert row["different_bytes"] == 0
        assert row["seconds"] > 0
