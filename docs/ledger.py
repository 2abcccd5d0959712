# SPDX-License-Identifier: Apache-2.0
"""How each claim is known, as docs/ledger.md, which docs/pages.py writes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tables import markdown

from bench.gpu.device_calls import FAMILIES
from conformance import TITLES
from gpucast.convert.scales import scale_styles
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import ROUNDING_MODES
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.parity.cases import all_cases, all_pairs
from gpucast.quantization import FORMATS, RECIPES
from gpucast.quantization.scale_orders import SCALE_ORDERS

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS, SCORES = ROOT / "docs" / "ledger.md", ROOT / "bench" / "results", ROOT / "tests/conformance/scores"
HEAD = (
    "Claim",
    "Proved for all inputs",
    "Executed from PTX",
    "Executed as host code",
    "Compared with others",
    "Measured on a GPU",
)
Row = Sequence[str]

INTRO = """\
# How each claim is known

A row for each claim, and a column for each kind of evidence; an empty cell is none of this kind. `docs/pages.py`
writes this page from the committed results and the tests that it names.

- **Proved for all inputs**: the PTX of the kernel equals the specification for every input, by `python -m tests.proof`
  ([how](proof.md)); the cell counts rules in the certificates. A certificate holds for the PTX that it names: the tests
  compare a share of every certificate with the kernels of the day, another share whenever it changes. For block formats
  the kernel is the one that takes given scales; the search for scales is not proved.
- **Executed from PTX**: whole launches of each public call by a machine that executes PTX (`tests/proof/simt.py`).
- **Executed as host code**: the same text of the kernels, compiled for the CPU, bit for bit against the reference and
  an exact model.
- **Compared with others**: with another library or its own tests, and how much of it. "May" are cases that differ for
  the reason that follows. Why libraries differ from a format [is here](conformance.md#block-formats).
- **Measured on a GPU**: nothing yet.
"""


def load(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def tests(*paths: str) -> str:
    """Links to tests, all of which exist."""
    for path in paths:
        assert (ROOT / "tests" / path).exists(), path
    return ", ".join(f"[{Path(path).stem}](../tests/{path})" for path in paths)


#: The words in the names of the calls that are executed from PTX.
EXECUTED = [set(re.split("[ ,]+", call.name)) for calls in FAMILIES.values() for call in calls()]


def ran(*words: str) -> str:
    """The test that executes launches, if the name of one of its calls has all these words."""
    return tests("parity/test_device_calls.py") if any(names >= set(words) for names in EXECUTED) else ""


def certificates(paths: str) -> Iterator[dict[str, Any]]:
    for path in sorted(RESULTS.glob("proof-*.json")):
        found = load(path.name)
        if found["paths"] == paths:
            yield found


def proved(paths: str, wanted: Any, pairs: Sequence[tuple[DType, DType]] = ()) -> str:
    """How many cases of `wanted`, a test of attributes, the certificates have by architecture."""
    every = [case for case in all_cases(pairs or all_pairs()) if wanted(dict(case.attributes))]
    counts = {}
    for found in certificates(paths):
        known = {rule_of(one) for one in found["proofs"] if one["verdict"] == "proved"}
        counts[found["arch"]] = sum(case.rule in known for case in every)
    return ", ".join(f"{arch} {count:,} of {len(every):,}" for arch, count in counts.items() if count)


def rule_of(proof: dict[str, Any]) -> CastRule:
    given = {name: value for name, value in proof["attributes"].items() if name not in ("seed", "offset")}
    return resolve(dtype(proof["src"]), dtype(proof["dst"]), Options(**given))


def row(claim: str, proved: str = "", ran: str = "", tested: str = "", others: str = "") -> Row:
    """A claim with its evidence; no GPU has measured any yet."""
    return claim, proved, ran, tested, others, ""


# ---- casts ----


def casts() -> Iterator[Row]:
    matrix = tests("parity/test_matrix.py", "parity/test_parity.py")
    yield row(
        f"Casts of all {len(all_pairs())} pairs", proved("full", lambda a: not a), ran("whole"), matrix, exact_pairs()
    )
    for name, text in (("saturate", "`saturate=False`"), ("round_mode", "`round_mode`"), ("overflow", "`overflow`")):
        yield row(text, proved("full", lambda a, name=name: name in a), ran(name), matrix, by_modes(name))
    yield row("`opset` 19 to 23 (infinity to FNUZ)", proved("full", lambda a: "opset" in a), ran("opset"), matrix)
    for word in dict.fromkeys(mode.word for mode in ROUNDING_MODES if mode.word != "truncate"):
        given = proved("full", lambda a, word=word: a.get("rounding") == word)
        yield row(f'`rounding="{word}"`', given, ran("rounding", word), matrix, by_modes(word))
    for paths, text, test, named in (
        ("edges", "Arrays at any address, of any length", "kernel/test_kernels_layout.py", "whole"),
        ("layouts", "Strided and transposed arrays", "kernel/test_kernels_layout.py", "transposed"),
        ("many", "`cast_many`", "casting/test_cast_many.py", "scales"),
        ("scaled", "Casts times a FLOAT", "casting/test_fused_keywords.py", "float32"),
    ):
        yield row(text, proved(paths, lambda a: not a), ran(named), tests(test))
    fused = tests("casting/test_fused_keywords.py")
    yield row("`amax`, `finite`, times a DOUBLE", ran=ran("float64", "amax"), tested=fused)
    layouts = tests("parity/test_matrix.py", "host/test_host_layouts.py")
    yield row("Host casts of NumPy arrays", tested=layouts, others=exact_pairs())
    yield row("Casts, by suites of others", others=suites("casts"))
    yield row("Values of types, by suites of others", tested=tests("core/test_dtypes.py"), others=suites("types"))
    yield row("Text to numbers and back", tested=tests("host/test_text.py"), others=suites("text"))
    given = proved("full", lambda a: not a, [(dtype("FLOAT"), dtype("FLOAT8UE5M3"))])
    test = tests("parity/test_unsigned_float.py")
    yield row("Every FLOAT to FLOAT8UE5M3", given, ran("FLOAT8UE5M3"), test, suites("FLOAT8UE5M3"))


def scores() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in TITLES:
        yield name, json.loads((SCORES / f"{name}.json").read_text(encoding="utf-8"))


def exact_pairs() -> str:
    """In how many pairs some other system has the bits of ONNX in every case."""
    found = {
        (src, dst)
        for name, score in scores()
        if name != "gpucast"
        for src, row in score["modes"].get("", {}).get("pairs", {}).items()
        for dst, word in row.items()
        if word == "onnx"
    }
    return f"[the same bits](conformance.md) in {len(found)} pairs, each by some of {len(TITLES) - 1} systems"


def by_modes(word: str) -> str:
    """The systems that were asked for a rounding or an overflow, and gave it in all cases."""
    asked = {"saturate": ("ocp-overflowing",), "overflow": ("saturating",), "round_mode": ("cuda-down",)}
    names = asked.get(word, (word.replace("_", "-"),))
    found = Counter(
        name
        for name, score in scores()
        if name != "gpucast"
        for mode, result in score["modes"].items()
        if mode in names
        for row in result["pairs"].values()
        for verdict in row.values()
        if isinstance(verdict, str)
    )
    return ", ".join(f"{TITLES[name]}: {count} pairs" for name, count in found.items())


def suites(kind: str = "") -> str:
    """What suites of others were run, and how many of their cases differ."""
    path = RESULTS / "suites.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return "; ".join(
        f"{row['suite']} {row['version']}: {row['cases']:,} cases, {row['differ']:,} differ"
        + (f", {row['legal']:,} may ({row['why']})" if row["legal"] else "")
        for row in rows
        if row["kind"] == kind
    )


# ---- quantization ----


def quantization() -> Iterator[Row]:
    given: dict[str, set[str]] = {name: set() for name in FORMATS}
    for path in RESULTS.glob("quantize-proof-*.json"):
        for one in load(path.name)["proofs"]:
            if one["verdict"] == "proved":
                given[one["format"]].add(one["src"])
    blocks = block_scores()
    tested = tests("quantization/test_quantization_device.py")
    for base in dict.fromkeys(re.sub(r"_(tensor|axis|\d+x?\d*)$", "", name) for name in FORMATS):
        shapes = [name for name in FORMATS if re.sub(r"_(tensor|axis|\d+x?\d*)$", "", name) == base]
        sources = sorted(set().union(*(given[name] for name in shapes)))
        known = f"sm_90: codes by given scales, from {', '.join(sources)}" if sources else ""
        others = "; ".join(blocks[name] for name in shapes if name in blocks)
        yield row(f"Format `{base}`", known, next(filter(None, map(ran, shapes)), ""), tested, others)
    yield row("`scales_of`", tested=tests("quantization/test_scales_of.py"))
    cells = "[each cell](requantizing.md), by trying what decides on it, or a counterexample"
    yield row("What requantizing keeps", cells, tested=tests("quantization/test_requantizing.py"))
    orders = ", ".join(order.name for order in SCALE_ORDERS if order.name != "linear")
    yield row(f"Orders of scales: {orders}", "", ran("scale_layout"), tests("quantization/test_scales.py"))
    yield row("Hadamard transforms", "", ran("hadamard"), tests("quantization/test_hadamard.py"))
    yield row("Grouped rows", "", ran("pad"), tests("quantization/test_grouped.py"))
    yield row("Quantizers, by suites of others", others=suites("quantizers"))
    compared, words = load("recipes.json"), {"package": "its code:", "model": "its formula:"}
    for name, recipe in RECIPES.items():
        found = compared.get(name, {})
        parts = [
            f"{words[what]} {found[what]['elements']:,} numbers, {found[what]['codes'] + found[what]['scales']} differ"
            for what in ("package", "model")
            if found.get(what)
        ]
        known = f"{recipe.library} {recipe.version}, {recipe.held}; " + "; ".join(parts)
        yield row(f"Recipe `{name}`", "", ran(name), tests("quantization/test_recipes.py"), known)


def block_scores() -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for path in sorted(SCORES.glob("*.json")):
        score = json.loads(path.read_text(encoding="utf-8"))
        for name, one in (score.get("blocks") or {}).get("formats", {}).items():
            if path.stem != "gpucast" and "cases" in one:
                wrong = one.get("codes", 0) + one.get("scales", 0) + one.get("numbers", 0)
                found.setdefault(name, []).append(f"{score['version'].split(',')[0]}: {one['cases']:,}, {wrong} differ")
    return {name: "; ".join(texts) for name, texts in found.items()}


# ---- the rest ----


def families() -> Iterator[Row]:
    for name, calls in FAMILIES.items():
        yield row(f"Kernels: {name}", "", f"{len(list(calls())):,} calls", tests("parity/test_device_calls.py"))


def libraries() -> Iterator[Row]:
    for name, text, test in (
        ("torch", "PyTorch tensors, gradients, `torch.compile`", "libraries/test_torch.py"),
        ("jax", "JAX arrays", "libraries/test_jax.py"),
        ("onnx", "ONNX backend", "interop/test_onnx_backend.py"),
        ("onnxruntime", "onnxruntime operators", "interop/test_ort.py"),
    ):
        score = json.loads((SCORES / f"{name}.json").read_text(encoding="utf-8"))
        same = sum(
            word == "onnx" for row in next(iter(score["modes"].values()))["pairs"].values() for word in row.values()
        )
        yield row(
            text, tested=tests(test), others=f"[{score['version']}](conformance.md): the same bits in {same} pairs"
        )
    nodes = tests("interop/test_onnx_backend.py")
    yield row("ONNX's own node tests of Cast and CastLike", tested=nodes, others=suites("onnx"))
    others = "read and written by safetensors, NumPy, onnx"
    yield row("Files", tested=tests("files/test_files_others.py"), others=others)
    styles = ", ".join(scale_styles.STYLES)
    yield row(f"Checkpoints in the styles {styles}", tested=tests("convert/test_scales_read.py"))


def page() -> str:
    sections = (
        ("Casts", casts()),
        ("Quantization", quantization()),
        ("Kernels", families()),
        ("The rest", libraries()),
    )
    texts = (f"## {name}\n\n{markdown(HEAD, rows)}\n" for name, rows in sections)
    return INTRO + "\n" + "\n".join(texts)
