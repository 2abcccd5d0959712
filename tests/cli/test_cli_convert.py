# SPDX-License-Identifier: Apache-2.0
"""`gpucast convert`."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same
from gpucast import files
from gpucast.cli import convert, main, progress
from gpucast.core.dtypes import DType
from tensors import HELD, ids, leftovers


def summary(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """Run a conversion without scales that succeeds; return its JSON."""
    assert main(["convert", *argv, "--overwrite", "--json", "--scale", "none"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    parsed: dict[str, Any] = json.loads(printed.out)
    return parsed


def failure(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a conversion without scales that fails; return its one line on stderr."""
    assert main(["convert", *argv, "--overwrite", "--scale", "none"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("gpucast convert: ")
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize(("suffix", "row"), HELD, ids=ids)
def test_the_output_is_what_cast_gives(
    suffix: str, row: DType, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.array([[0.0, 1.0, -1.0], [2.0, 0.5, 3.75]], np.float32)
    files.save("in.npz", {"x": x})
    result = summary(capsys, "in.npz", f"out{suffix}", "--to", row.name, "--allow-loss")
    (y,) = files.load(f"out{suffix}").values()
    assert_same(y, gpucast.cast(x, row), row)
    assert result["total"]["elements"] == 6
    assert result["total"]["bytes_in"] == 24
    if row.bits:
        assert result["total"]["bytes_out"] == row.nbytes(6)


#: Elements, options, how many are saturated, wrapped, infinite, NaN, lost NaN, zero; the error. All that options do:
#: tests/casting/test_report.py.
COUNTS: list[tuple[str, str, list[int], float]] = [
    ("0 1 17 1000 -1e-9 nan inf", "FLOAT8E4M3FN", [2, 0, 0, 0, 0, 1], 1),
    ("2 1000 nan", "FLOAT8E4M3FN --no-saturate", [0, 0, 0, 1, 0, 0], 0),
    ("inf", "FLOAT8E4M3FNUZ --opset 19", [0, 0, 0, 1, 0, 0], 0),
    ("300 1 0.5 inf", "INT8", [0, 2, 0, 0, 0, 1], 1),
    ("300 1", "INT8 --overflow saturate", [1, 0, 0, 0, 0, 0], 173 / 300),
    ("2.5", "INT8 --rounding nearest_even", [0, 0, 0, 0, 0, 0], 0.5 / 2.5),
    ("2.5", "INT8 --rounding nearest_away", [0, 0, 0, 0, 0, 0], 0.5 / 2.5),
    ("464", "FLOAT8E4M3FN --rounding nearest_away", [1, 0, 0, 0, 0, 0], 16 / 464),
    ("3", "FLOAT8E8M0 --round-mode down", [0, 0, 0, 0, 0, 0], 1 / 3),
    ("1e39 -inf", "FLOAT", [0, 0, 1, 0, 0, 0], 0),
    ("1.5 nan", "INT8", [0, 0, 0, 0, 1, 0], 0.5 / 1.5),
]


@pytest.mark.parametrize(("values", "options", "counts", "error"), COUNTS)
def test_the_counts(
    values: str, options: str, counts: list[int], error: float, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.array(values.split(), dtype=np.float64)
    np.save("x.npy", x)
    result = summary(capsys, "x.npy", "y.npy", "--allow-loss", "--to", *options.split())
    names = ("saturated", "wrapped", "infinite", "nan", "nan_lost", "underflowed")
    for found in (result["total"], *result["tensors"]):
        assert (found["elements"], found["nonzero"]) == (x.size, np.count_nonzero(x))
        assert [found[name] for name in names] == counts
        assert found["max_relative_error"] == pytest.approx(error)


def test_the_summary_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("in.npz", w=np.full(2000, 1.0), big=np.array([1e9] + [1.0] * 999), n=np.arange(3), t=np.array(["a"]))
    assert main(["convert", "in.npz", "out.npz", "--to", "float16"]) == 0
    assert capsys.readouterr().out == (
        "left alone: 'n' (INT64), 't' (STRING)\n"
        "out.npz: 2 tensors cast to FLOAT16, 3,000 elements, 24 kB -> 6 kB; 1 became infinite\n"
    )


def test_the_summary_line_tells_errors_and_what_is_no_number(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def line(**arrays: Any) -> str:
        files.save("in.safetensors", {name: np.asarray(x, np.float32) for name, x in arrays.items()})
        argv = ["in.safetensors", "out.safetensors", "--to", "BFLOAT16", "--overwrite", "--allow-loss"]
        assert main(["convert", *argv]) == 0
        return capsys.readouterr().out.strip().rpartition("bytes; ")[2]

    # 1 + 2^-9 loses 2^-9: 10 log10((1 + 2^-9)^2 * 2^18) dB.
    assert line(w=[1 + 2**-9]) == "SQNR 54.2 dB"
    assert line(w=[1 + 2**-9], v=[1 + 2**-8]) == "SQNR 48.2 dB at worst, of 'v'"
    assert line(w=[1, 2]) == "no error"
    assert line(w=[np.nan, np.inf, -np.inf, 1]) == "1 result is NaN; 2 results are infinite"
    assert line(w=[3.4e38, np.nan]) == "1 became infinite; 1 result is NaN"


def test_bytes_that_are_left_alone_are_not_touched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd: dict[str, Any] = {
        "c": np.arange(3) * 1j,
        "big": np.arange(3, dtype=">i2"),
        "f": np.asfortranarray(np.eye(2, dtype=np.int8)),
        "s": np.array([b"\xff"]),
        "d": np.zeros(2, "M8[s]"),
        "r": np.zeros(2, "i4,f4"),
        "v": np.void(b"ab"),
    }
    np.savez("in.npz", w=np.ones(3), **odd)
    result = summary(capsys, "in.npz", "out.npz", "--to", "FLOAT")
    assert {tensor["name"] for tensor in result["left_alone"]} == set(odd)
    with np.load("in.npz") as before, np.load("out.npz") as after:
        assert after["w"].dtype == np.float32
        for name in odd:
            assert after[name].dtype == before[name].dtype
            assert after[name].flags.f_contiguous == before[name].flags.f_contiguous
            assert after[name].tobytes() == before[name].tobytes()
    assert "'c' of type <c16 from another format" in failure(capsys, "in.npz", "out.safetensors", "--to", "FLOAT")
    message = failure(capsys, "in.npz", "out.npz", "--to", "FLOAT", "--include", "*")
    assert "tensor 'c' has type <c16, which Cast does not take" in message


def test_a_file_can_be_converted_in_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.linspace(-2, 2, 3 << 20, dtype=np.float32)
    for suffix in files.SUFFIXES:
        files.save(f"x{suffix}", {"x": x})
        summary(capsys, f"x{suffix}", f"x{suffix}", "--to", "FLOAT16", "--device", "cpu")
        assert_same(files.load(f"x{suffix}")["x"], gpucast.cast(x, "FLOAT16"), gpucast.dtype("FLOAT16"))
    assert leftovers(folder, *(f"x{suffix}" for suffix in files.SUFFIXES)) == []


def test_too_much_loss_stops_before_anything_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = np.random.default_rng(0).normal(0, 0.02, 1000).astype(np.float32)
    files.save("in.safetensors", {"good": np.ones(10, np.float32), "layer.w": weights})
    Path("out.safetensors").write_bytes(b"old")
    message = failure(capsys, "in.safetensors", "out.safetensors", "--to", "int4")
    assert "tensor 'layer.w' from FLOAT to INT4 would lose 1,000 of its 1,000 non-zero values" in message
    assert "(100.0 %): 1,000 became zero" in message
    assert "--allow-loss" in message
    assert Path("out.safetensors").read_bytes() == b"old"
    assert leftovers(folder, "in.safetensors", "out.safetensors") == []
    result = summary(capsys, "in.safetensors", "out.safetensors", "--to", "int4", "--allow-loss")
    assert result["total"]["underflowed"] == 1000


@pytest.mark.parametrize(
    ("values", "options", "word"),
    [
        ([1e-9], ["--to", "FLOAT16"], "became zero"),
        ([1000], ["--to", "FLOAT8E4M3FN"], "saturated"),
        ([1000], ["--to", "INT8"], "wrapped"),
        ([1e6], ["--to", "FLOAT16"], "became infinite"),
        ([1000], ["--to", "FLOAT8E4M3FN", "--no-saturate"], "became NaN"),
        ([np.nan], ["--to", "INT8"], "were NaN"),
    ],
)
def test_one_percent_is_the_limit(
    values: list[float], options: list[str], word: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zeros do not count, and exactly 1 % may be lost."""
    fine = [1.0] * 99 + [0.0] * 500
    np.save("x.npy", np.array(values + fine))
    summary(capsys, "x.npy", "y.npy", *options)
    np.save("x.npy", np.array(values + fine[1:]))
    assert f"1 of its 99 non-zero values (1.0 %): 1 {word}" in failure(capsys, "x.npy", "y.npy", *options)


def test_text_both_ways(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([1.5, -0.0, np.inf, 1e-5]))
    summary(capsys, "x.npy", "y.npy", "--to", "STRING")
    assert np.load("y.npy").tolist() == ["1.5", "-0.0", "INF", "1e-05"]
    summary(capsys, "y.npy", "z.pb", "--to", "FLOAT")
    assert files.load("z.pb")["y"].tolist() == [1.5, 0, np.inf, float(np.float32(1e-5))]
    assert "cannot hold STRING" in failure(capsys, "x.npy", "y.safetensors", "--to", "STRING")
    np.savez("t.npz", t=np.array(["1"] * 70_000 + ["x"]))
    message = failure(capsys, "t.npz", "out.npz", "--to", "FLOAT")
    assert "t.npz: tensor 't'" in message
    assert "70000" in message
    np.save("n.npy", np.array(["300"]))
    assert "300" in failure(capsys, "n.npy", "out.npy", "--to", "INT8")
    assert leftovers(folder, "x.npy", "y.npy", "z.pb", "t.npz", "n.npy") == []


def test_raw_elements_need_a_type(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NumPy saves ml_dtypes arrays without their type; other programs save codes."""
    wanted = np.array([1, -2, 0.5])
    for name in ("bfloat16", "float8_e4m3fn", "int4"):
        x = wanted.astype(np.float32).astype(name)
        np.save("x.npy", x)
        np.savez("x.npz", a=x, n=np.arange(3, dtype=np.uint8), f=wanted)
        assert "give --from T" in failure(capsys, "x.npy", "y.npy", "--to", "DOUBLE")
        for path in ("x.npy", "x.npz"):
            chosen = ["--include", "[a]"] if path == "x.npz" else []
            result = summary(capsys, path, "y.npz", "--to", "DOUBLE", "--from", name, *chosen)
            (tensor,) = result["tensors"]
            assert tensor["from"] == gpucast.dtype(name).name
            assert files.load("y.npz")[tensor["name"]].tolist() == x.astype(np.float64).tolist()
    np.save("x.npy", wanted.astype(ml_dtypes.float8_e5m2).view(np.uint8))
    summary(capsys, "x.npy", "y.npy", "--to", "DOUBLE", "--from", "FLOAT8E5M2")
    assert np.load("y.npy").tolist() == wanted.tolist()
    assert "fits no tensor" in failure(capsys, "x.npy", "y.npy", "--to", "DOUBLE", "--from", "BFLOAT16")
    np.savez("x.npz", a=np.zeros(3, np.uint8), f=wanted)
    assert "fits no tensor" in failure(capsys, "x.npz", "y.npz", "--to", "FLOAT", "--from", "FLOAT8E5M2")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_for_people_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = MagicMock()
    monkeypatch.setattr(progress, "_tqdm", lambda: bar)
    for stderr, wanted, drawn in [(io.StringIO(), True, 0), (Terminal(), False, 0), (Terminal(), True, 1)]:
        monkeypatch.setattr(sys, "stderr", stderr)
        bar.reset_mock()
        with progress.progress_bar(10, wanted) as advance:
            advance(10)
        assert bar.call_count == drawn
    bar().__enter__().update.assert_called_once_with(10)


def test_the_bar_counts_every_byte(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    stages: list[str] = []

    @contextlib.contextmanager
    def bar(total: int, wanted: bool, stage: Any) -> Iterator[Any]:
        # Once when they are cast, and once when they are verified.
        assert (total, wanted) == (2 * (3 * 4 + 5 * 8 + 2), True)

        def advance(count: int) -> None:
            done.append(count)
            stages.append(stage())

        yield advance

    monkeypatch.setattr(convert, "progress_bar", bar)
    np.savez("x.npz", w=np.ones(3, np.float32), n=np.arange(5), b=np.array([True, False]))
    for out in ("y.npz", "y.safetensors"):
        done.clear()
        stages.clear()
        assert main(["convert", "x.npz", out, "--to", "FLOAT8E5M2", "--scale", "none", "--verify"]) == 0
        assert sum(done) == 2 * (3 * 4 + 5 * 8 + 2)
        assert list(dict.fromkeys(stages)) == ["casting", "writing to the disk", "verifying", "publishing"]


def test_metadata_that_the_format_cannot_hold_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save("x.safetensors", {"a": np.ones(3, np.float32)}, {"license": "x"})
    assert main(["convert", "x.safetensors", "y.npz", "--to", "FLOAT16"]) == 0
    assert "metadata not kept, since the format of OUT has none: 'license'" in capsys.readouterr().out
    assert main(["convert", "x.safetensors", "y.safetensors", "--to", "FLOAT16"]) == 0
    assert "metadata" not in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_integers_below_one_byte_and_back(suffix: str, folder: Path) -> None:
    """What gpucast's metadata describe is cast back without --include; indices and others' integers stay."""
    x, ids = np.arange(-8, 8, dtype=np.float32).reshape(2, 8), np.arange(5, dtype=np.uint8)
    gpucast.save(f"x{suffix}", {"x": x, "odd": x[:1, :3], "ids": ids})
    for to in ("INT4", "INT2"):
        options = ["--scale", "none", "--allow-loss", "--overwrite"]
        assert main(["convert", f"x{suffix}", f"i{suffix}", "--to", to, *options]) == 0
        assert main(["convert", f"i{suffix}", f"back{suffix}", "--to", "FLOAT", "--overwrite"]) == 0
        back = gpucast.load(f"back{suffix}")
        for name, one in (("x", x), ("odd", x[:1, :3])):
            assert_same(back[name], gpucast.cast(gpucast.cast(one, to), "FLOAT"), gpucast.dtype("FLOAT"))
        assert_same(back["ids"], ids, gpucast.dtype("UINT8"))
