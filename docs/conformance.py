# SPDX-License-Identifier: Apache-2.0
"""The scoreboard, from the results in tests/conformance/scores: docs/conformance.md, its picture, and the last section
of the README, which docs/pages.py writes.

No other library runs for it. A result comes from ``python -m cast_conformance NAME --json FILE``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from pictures import SOFT, svg, text
from tables import code, markdown

import gpucast
from bench.peers import t27
from cast_conformance.compare import Case
from cast_conformance.reader import manifest
from cast_conformance.report import WHAT
from cast_conformance.run import reproduction

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "tests" / "conformance"
SUITES = ROOT / "bench" / "results" / "suites.json"
PAGE, PICTURE = ROOT / "docs" / "conformance.md", ROOT / "docs" / "static" / "conformance.svg"
NAMES = [row.name for row in gpucast.DTYPES if row.name in manifest()["types"]]
TITLES = {
    "gpucast": "gpucast",
    "gfloat": "gfloat",
    "c": "C compiler",
    "clang": "clang",
    "cuda": "CUDA headers",
    "ml_dtypes": "ml_dtypes",
    "onnx": "onnx reference",
    "onnxruntime": "onnxruntime",
    "torch": "PyTorch",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "mlx": "MLX",
    "triton": "Triton",
    "tinygrad": "tinygrad",
}
#: Those that quantize blocks.
BLOCK_SYSTEMS = ("torchao", "compressed_tensors", "microxcaling", "gfloat")
#: Colours of the picture by what a cell is.
COLOURS = {"onnx": "#3a93bb", "convention": "#9ccbe0", "open": "#c9cdd3", "differs": "#d9691f"}
#: Conventions of C and of OCP that leave cases undefined.
_OPEN = ("c-cast", "nearest", "ocp", "ocp-up", "ocp-down", "ocp-nearest", "ocp-nearest-even")

INTRO = """\
# How others cast: the scoreboard

`tests/conformance` is **cast-conformance**, a suite that anyone can run: the expected bits of every cast between 26
types, complete for sources of 16 bits or fewer, hard cases for wider ones. Its
[README](../tests/conformance/README.md) says how to run it, how to read it in C or Python, and how to write
an adapter in 20 lines. `docs/pages.py` writes this page from the committed results.

The expected bits come from [the reference](semantics.md), and its rules are [proved](proof.md); [the ledger](ledger.md)
has what suites of others say of them. A legal difference is no error: a pair of types counts as exact if all its
results follow one of the named conventions (ONNX, IEEE 754, OCP, C, CUDA's `satfinite`, ...). All results are from
x86-64 CPUs.
[What changes when you switch](switching.md) says how to get the others' results from gpucast.
"""

#: Page, FLOAT value, destination, what the page says, why gpucast does otherwise.
PAGES: tuple[tuple[str, float, str, str, str], ...] = (
    ("float4", np.nan, "FLOAT4E2M1", "6", "the shipped node tests expect a zero"),
    ("float4", -np.nan, "FLOAT4E2M1", "6", "the same, with the sign turned"),
    (
        "float6",
        -np.nan,
        "FLOAT6E2M3",
        "-0.0, called unspecified",
        "as FLOAT4E2M1; NaN without sign gives -0.0 here too",
    ),
    ("int4", 1.5, "INT4", "2, ties to even", 'truncated, as to every integer; rounding="nearest_even" gives 2'),
    ("int4", 2.75, "INT4", "3", "the same"),
    ("int2", 0.75, "UINT2", "1", "the same"),
    ("float8", np.inf, "FLOAT8E4M3FNUZ", "NaN", "the maximum from opset 24 on; NaN with opset 19 to 23"),
    ("float8", np.inf, "FLOAT8E5M2FNUZ", "NaN", "the same"),
)

#: What the operator text leaves undefined or does not mention, what gpucast does, and an example of it.
OPEN: tuple[tuple[str, str, str, Any, str, dict[str, Any]], ...] = (
    ("rounding between floating types", "to nearest, ties to even", "FLOAT", 2049.0, "FLOAT16", {}),
    ("wide types to narrow ones", "rounded once", "DOUBLE", 4.250000000000001, "FLOAT8E4M3FN", {}),
    ("fraction to integer", "truncated", "FLOAT", -1.75, "INT32", {}),
    ("out of range to integer", "low bits of the truncated number", "FLOAT", 300.0, "UINT8", {}),
    ("NaN and infinity to integer", "0", "FLOAT", np.inf, "INT32", {}),
    ("out of range to float4, float6", "signed maximum", "FLOAT", -np.inf, "FLOAT6E3M2", {}),
    ("NaN to float4, float6", "zero with the sign turned", "FLOAT", np.nan, "FLOAT6E3M2", {}),
    ("0 and -0 to FLOAT8E8M0, which has no zero", "the least value", "FLOAT", -0.0, "FLOAT8E8M0", {}),
    ("negative to FLOAT8E8M0", "the least value", "FLOAT", -1.0, "FLOAT8E8M0", {}),
    ("the same with saturate=0", "NaN", "FLOAT", -1.0, "FLOAT8E8M0", {"saturate": False}),
    ("saturate=0 outside 2^-127 to 2^127", "NaN", "FLOAT", 2.0**-128, "FLOAT8E8M0", {"saturate": False}),
    ("bits of NaN", "quiet, the source's sign, no payload", "FLOAT", -np.nan, "FLOAT16", {}),
    ("NaN and infinity to text", "NaN, INF, -INF", "FLOAT", -np.inf, "STRING", {}),
    ("layout of text", "shortest digits; exponent from 1e16 and below 1e-4", "FLOAT", 1e20, "STRING", {}),
    ("text of a fraction to integer", "truncated", "STRING", "2.718", "INT32", {}),
    ("text to BOOL", "true, false, or a number other than 0", "STRING", "0.0", "BOOL", {}),
    ("other text", "refused", "STRING", "0x10", "FLOAT", {}),
)


class System:
    """A committed result."""

    def __init__(self, name: str) -> None:
        content = json.loads((SUITE / "scores" / f"{name}.json").read_text(encoding="utf-8"))
        self.name, self.title, self.version, self.date = name, TITLES[name], content["version"], content["date"]
        self.lines, self.names, self.modes = content["lines"], content["names"], content["modes"]
        #: What it does when nothing is asked for, or ONNX's default.
        self.pairs: dict[tuple[str, str], Any] = self.of_mode(next(iter(self.modes)))

    def of_mode(self, mode: str) -> dict[tuple[str, str], Any]:
        rows = self.modes[mode]["pairs"]
        return {(src, dst): cell for src, row in rows.items() for dst, cell in row.items()}

    def kind(self, pair: tuple[str, str]) -> str | None:
        """What the picture shows of a pair; None where it is not there."""
        cell = self.pairs.get(pair)
        if cell is None or isinstance(cell, dict):
            return None if cell is None else "differs"
        return cell if cell == "onnx" else "open" if cell in _OPEN else "convention"

    @property
    def differing(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {pair: cell for pair, cell in self.pairs.items() if isinstance(cell, dict)}


def systems() -> list[System]:
    return [System(name) for name in TITLES]


# ---- the scoreboard ----


def scoreboard(all_systems: list[System]) -> Iterator[str]:
    yield "## Scoreboard\n"
    yield "![For each system a square of 26 by 26 cells, a row for each source](static/conformance.svg)\n"
    yield "Rows are sources, columns destinations, in the order of [the types](types.md).\n"
    rows = []
    for each in all_systems:
        kinds = Counter(map(each.kind, each.pairs))
        rows.append([
            each.title, each.version, each.date, str(len(each.pairs)), str(kinds["onnx"]),
            str(kinds["convention"]), str(kinds["open"]), str(kinds["differs"]),
        ])  # fmt: skip
    head = ["System", "Version", "Date", "Pairs", "As ONNX", "Another convention", "Open", "Differ"]
    yield markdown(head, rows) + "\n"
    yield '"As ONNX" is bit for bit what gpucast gives. "Open" follows C or OCP, which leave some cases undefined, such'
    yield "as NaN to an integer. Every system is run in every mode that it can be asked for; the table has the first.\n"
    yield "## Who does what\n"
    rows = []
    rows = [[what, who(all_systems, what)] for what in dict.fromkeys(WHAT.values())]
    undefined = [(each, sum(cell == "c-cast" for cell in each.pairs.values())) for each in all_systems]
    rows.append(["numbers out of an integer's range give undefined results", counted(undefined)])
    yield markdown(["What", "Who, in how many pairs"], rows) + "\n"


def who(all_systems: list[System], what: str) -> str:
    return counted([(each, len(grouped(each).get(what, ()))) for each in all_systems])


def counted(found: list[tuple[System, int]]) -> str:
    return ", ".join(f"{each.title} ({count})" for each, count in found if count) or "nobody"


def block_formats() -> Iterator[str]:
    """What libraries make of matrices in block formats."""
    yield "## Block formats\n"
    yield "The input is a matrix of FLOAT: ties, edges of scales, zeros, and numbers from subnormal to the largest. A"
    yield "table has the codes and scales of a format, or of [a recipe](which-recipe.md), whose version it names. For"
    yield "microxcaling and gfloat the numbers that come back were compared. Blocks with infinity or NaN are counted"
    yield "apart: the last column says whether they differ.\n"
    rows = []
    for name in BLOCK_SYSTEMS:
        content = json.loads((SUITE / "scores" / f"{name}.json").read_text(encoding="utf-8"))
        for format, found in content["blocks"]["formats"].items():
            counts = [found.get("numbers", found.get("codes")), found.get("scales", "")]
            special = "" if found["special"] is None else "yes" if found["special"] else "no"
            of = manifest()["formats"][format].get("of", "a format of gpucast")
            version = content["version"].partition(",")[0]
            rows.append([version, f"`{format}`", of, *map(str, counts), str(found["cases"]), special])
    head = ["System", "Table", "The table's version", "Codes or numbers that differ", "Scales", "Of", "Others differ"]
    yield markdown(head, rows) + "\n"
    yield "torchao 0.18 divides by 2^-126 at least, so blocks with a smaller scale differ. compressed-tensors has no"
    yield "scale for a block of the largest FLOAT in MXFP4.\n"


def readme() -> str:
    """The README's section."""
    all_systems = systems()
    rows = []
    for name in ("via-float", "flushed", "ties-away", "nan", "other"):
        examples = [
            (each, worst(each, WHAT[name], pairs)[0])
            for each in all_systems
            if (pairs := grouped(each).get(WHAT[name]))
        ]
        each, case = min(examples, key=lambda example: len(str(example[1])))
        rows.append([WHAT[name], who(all_systems, WHAT[name]), f"{each.title}: {case}"])
    dates = sorted(each.date for each in all_systems)
    return f"""\
`tests/conformance` compares gpucast and {len(all_systems) - 1} other systems with the expected bits of every cast, by
named conventions: ONNX, IEEE 754, OCP, C, CUDA. All were measured on x86-64 CPUs, the last on {dates[-1]}. A number
counts the pairs of types, of up to 676, in which a system does so:

{markdown(["What", "Who", "For example"], rows)}
"""


def differences(each: System) -> Iterator[str]:
    """What a system does otherwise, each with a case and the lines that show it."""
    yield f"## {each.title}\n"
    yield f"{each.version}, {each.date}. Of {len(each.pairs)} pairs {len(each.differing)} differ."
    for mode in list(each.modes)[1:]:
        cells = each.of_mode(mode)
        wrong = sum(isinstance(cell, dict) for cell in cells.values())
        if wrong:
            yield f"Asked for `{mode}`, {wrong} of {len(cells)} do."
    yield ""
    rows, shown = [], []
    for what, pairs in grouped(each).items():
        case, cases, tried = worst(each, what, pairs)
        some = ", ".join(f"{src} to {dst}" for src, dst in pairs[:4])
        more = f", ... ({len(pairs)} pairs)" if len(pairs) > 4 else ""
        rows.append([what, some + more, f"{cases:,} of {tried:,}", str(case)])
        shown.append(reproduction(each.name, each.lines, each.names, case))
    yield markdown(["What", "Pairs", "Results", "Example"], rows) + "\n"
    yield "The examples, in the same order:\n"
    language = "console" if each.lines is None else "text"
    yield f"```{language}\n" + ("\n\n" if each.lines else "\n").join(shown) + "\n```\n"


def grouped(each: System) -> dict[str, list[tuple[str, str]]]:
    """The differing pairs by what happened."""
    found: dict[str, list[tuple[str, str]]] = {}
    for pair, cell in each.differing.items():
        for what in {WHAT[name]: 0 for name in cell["faults"]}:
            found.setdefault(what, []).append(pair)
    return found


def worst(each: System, what: str, pairs: list[tuple[str, str]]) -> tuple[Case, int, int]:
    """The case that is easiest to read, of all pairs; how many results differ, and how many were compared."""
    cells = [(pair, each.differing[pair]) for pair in pairs]
    found = [(pair, cell, name) for pair, cell in cells for name in cell["faults"] if WHAT[name] == what]
    cases = [Case(*pair, *(int(word, 16) for word in cell["worst"][name])) for pair, cell, name in found]
    wrong = sum(cell["faults"][name] for _, cell, name in found)
    return min(cases, key=lambda case: len(str(case))), wrong, sum(cell["cases"] for _, cell in cells)


def picture(all_systems: list[System]) -> str:
    """A square for each system, a cell for each pair."""
    cell, columns, gap, top = 6, 4, 26, 84
    side = cell * len(NAMES)
    parts = [text(16, 28, "Casts between 26 types: rows are sources, columns destinations", "title")]
    words = {"onnx": "as ONNX", "convention": "another convention", "open": "open", "differs": "differs"}
    for i, (kind, colour) in enumerate(COLOURS.items()):
        parts += [f'<rect x="{16 + 165 * i}" y="42" width="12" height="12" fill="{colour}"/>']
        parts += [text(34 + 165 * i, 53, words[kind], "note")]
    for number, each in enumerate(all_systems):
        left, high = 16 + (side + gap) * (number % columns), top + (side + gap + 14) * (number // columns)
        parts.append(text(left, high - 6, each.title, "note"))
        parts.append(f'<rect x="{left}" y="{high}" width="{side}" height="{side}" fill="none" stroke="{SOFT}"/>')
        for kind, colour in COLOURS.items():
            squares = [
                f"M{left + cell * x} {high + cell * y}h{cell - 1}v{cell - 1}h{1 - cell}z"
                for y, src in enumerate(NAMES)
                for x, dst in enumerate(NAMES)
                if each.kind((src, dst)) == kind
            ]
            parts += [f'<path d="{"".join(squares)}" fill="{colour}"/>'] if squares else []
    rows = -(-len(all_systems) // columns)
    width = 16 + (side + gap) * columns
    return svg(width, top + (side + gap + 14) * rows, f"How {len(all_systems)} systems cast between 26 types", parts)


# ---- t27's catalogue, and ONNX's pages ----


def catalogue() -> Iterator[str]:
    """The formats of t27 beside the types here."""
    row = next(row for row in json.loads(SUITES.read_text(encoding="utf-8")) if row["suite"].startswith("t27"))
    elsewhere = {why: names.split() for why, names in t27.ELSEWHERE.items()}
    unsigned = {f"U{name}" for name in t27.HERE.values() if name.startswith("INT")}
    lacking = [one.name for one in gpucast.DTYPES if one.name not in {*t27.HERE.values(), *unsigned}]
    yield "## t27's catalogue\n"
    count = len(t27.HERE) + sum(map(len, elsewhere.values()))
    yield f"t27 (tt-lang-t27 {row['version']}, arXiv 2606.09686) lists {count} formats. It has packs of vectors for six"
    yield "formats and codecs for two. `python -m bench.peers.suites t27=FOLDER` casts the inputs of its packs, decodes"
    yield "their codes, and compares both directions of its codecs of GF16 and MXFP4 with casts and quantization here:"
    yield "all codes and ties of GF16 with their neighbours, and blocks with hard and random magnitudes. On"
    yield f"{row['date']}, {row['legal']} of {row['cases']:,} cases differed, because:\n"
    yield "\n".join(f"- {text};" for text in t27.DISAGREEMENTS[:-1])
    yield f"- {t27.DISAGREEMENTS[-1]}.\n"
    yield f"{len(t27.HERE)} of its formats are types here, or have elements that are. Bits, exponents and biases are"
    yield "the same. Its integers stand for unsigned ones, too.\n"
    here = [[f"`{name}`", of] for name, of in t27.HERE.items()]
    half = (len(here) + 1) // 2
    rows = [[*left, *right] for left, right in zip_longest(here[:half], here[half:], fillvalue=["", ""])]
    yield markdown(["t27", "Here", "t27", "Here"], rows) + "\n"
    yield "The others are not here:\n"
    rows = [[", ".join(f"`{name}`" for name in names), why] for why, names in elsewhere.items()]
    yield markdown(["t27", "Why not"], rows) + "\n"
    yield f"It does not list {', '.join(lacking[:-1])} and {lacking[-1]}; FLOAT8E8M0 has a pack.\n"


def onnx_pages() -> Iterator[str]:
    yield "## ONNX's own pages\n"
    yield "gpucast follows the operator text of the requested opset, then the shipped node tests, then its own rules."
    yield "The technical pages on the narrow types (onnx.ai, Technical Details) say otherwise in these places:\n"
    rows = [
        [page, f"FLOAT {shown('FLOAT', value)} to {dst}", says, result("FLOAT", value, dst, {}), why]
        for page, value, dst, says, why in PAGES
    ]
    yield markdown(["Page", "Example", "The page", "gpucast", "Why"], rows) + "\n"
    yield "The operator text leaves these undefined or open:\n"
    rows = [
        [what, rule, f"{src} {shown(src, value)} to {dst}", result(src, value, dst, keywords)]
        for what, rule, src, value, dst, keywords in OPEN
    ]
    yield markdown(["What", "gpucast", "Example", "Result"], rows)


def result(src: str, value: object, dst: str, keywords: dict[str, Any]) -> str:
    """What gpucast makes of a value."""
    try:
        return show(gpucast.cast(array(src, value), dst, **keywords), dst)
    except ValueError:
        return "refused"


def array(src: str, value: object) -> Any:
    return np.array([value], object if src == "STRING" else np.float64).astype(gpucast.dtype(src).numpy)


def shown(src: str, value: object) -> str:
    return show(array(src, value), src)


def show(x: Any, name: str) -> str:
    """One element: the value, and the code where the type is a narrow float."""
    row = gpucast.dtype(name)
    word = str(gpucast.cast(x, "STRING")[0])
    if row.is_float and (row.bits <= 8 or word == "NaN"):
        return f"{code(row, int(x.view(row.code_numpy)[0]) & row.code_mask)} {word}"
    return f"`{word}`"


def page() -> str:
    every = systems()
    parts = [INTRO, *scoreboard(every), *block_formats(), *catalogue()]
    for each in every:
        parts += differences(each) if each.differing else ()
    return "\n".join([*parts, *onnx_pages()]) + "\n"
