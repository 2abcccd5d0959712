# SPDX-License-Identifier: Apache-2.0
"""The README's picture: gpucast beside the libraries that people cast with.

Wrong results are from the scoreboard, times and codes from ``python -m bench.peers.beside``. docs/pages.py writes it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pictures import BLUE, FOLDER, ORANGE, SOFT, svg, text

from gpucast.quantization import FORMATS

ROOT = Path(__file__).resolve().parent.parent
PICTURE = FOLDER / "beside.svg"
SYSTEMS = {
    "gpucast": "gpucast",
    "torch": "PyTorch",
    "ml_dtypes": "ml_dtypes",
    "jax": "JAX",
    "onnxruntime": "onnxruntime",
}
LIBRARIES = {"torch": ("PyTorch", ORANGE), "ml_dtypes": ("ml_dtypes", SOFT), "torchao": ("torchao", "#b48ad6")}
LEFT, WIDE, ROW, END, WIDTH = 232, 400, 27, 744, 760
#: The ends of the scale of times, as powers of two.
LEAST, MOST = -1, 6


def picture() -> str:
    kept = json.loads((ROOT / "bench" / "results" / "beside-cpu.json").read_text("utf-8"))
    above = _wrong_results(60, kept["quantizers"])
    top = 60 + ROW * (len(SYSTEMS) + 1) + 40
    lines = _ratios(kept)
    below = _times(top, lines)
    bottom = top + 58 + ROW * len(lines) + 40
    machine = kept["machine"]
    libraries = ", ".join(f"{name} {machine[name].partition('+')[0]}" for name in LIBRARIES)
    notes = [
        "Shaded: the other library is quicker. One thread each; 4 million numbers, or 1 million for torchao.",
        f"{machine['processor']}; {libraries}; {machine['date']}",
    ]
    under = [text(16, bottom + 18 * number, note, "note") for number, note in enumerate(notes)]
    title = "gpucast beside PyTorch, ml_dtypes and torchao: wrong results and speed"
    return svg(WIDTH, bottom + 34, title, [*above, *below, *under])


def _wrong_results(y: float, quantizers: list[dict[str, Any]]) -> list[str]:
    """A bar for each system, and a line for torchao."""
    parts = [text(16, 28, "Wrong results found, in how many kinds of casts", "title")]
    for name, title in SYSTEMS.items():
        score = json.loads((ROOT / "tests" / "conformance" / "scores" / f"{name}.json").read_text("utf-8"))
        pairs = next(iter(score["modes"].values()))["pairs"]
        cells = [cell for row in pairs.values() for cell in row.values()]
        wrong = sum(isinstance(cell, dict) for cell in cells)
        width, colour = WIDE * wrong / 60, BLUE if name == "gpucast" else ORANGE
        bar = f'<rect x="{LEFT}" y="{y - 9}" width="{max(width, 1.5):.1f}" height="18" rx="2" fill="{colour}"/>'
        count = text(LEFT + width + 10, y + 5, f"{wrong} of {len(cells)} pairs of types", "note")
        parts += [text(LEFT - 12, y + 5, title, "end"), bar, count]
        y += ROW
    found = next(one for one in quantizers if one["format"] == "nvfp4")
    share = f"{found['wrong']:,} of {found['codes']:,} codes are not the nearest (gpucast: {found['ours']:,})"
    return [*parts, text(LEFT - 12, y + 5, "torchao, NVFP4", "end"), text(LEFT + 10, y + 5, share, "note")]


def _ratios(kept: dict[str, Any]) -> dict[str, list[tuple[str, float]]]:
    """The times of the others over ours, by the cast."""
    lines: dict[str, list[tuple[str, float]]] = {}
    for one in kept["casts"]:
        lines.setdefault(f"{one['from']} to {one['to']}", []).append((one["library"], one["ratio"]))
    for one in kept["quantizers"]:
        lines[f"BFLOAT16 to {FORMATS[one['format']].name}"] = [(one["library"], one["ratio"])]
    return lines


def _times(top: int, lines: dict[str, list[tuple[str, float]]]) -> list[str]:
    """A line for each cast, and on it a mark for each library."""
    parts = [text(16, top, "Speed on a CPU: how many times as long as gpucast", "title")]
    for number, (title, colour) in enumerate(LIBRARIES.values()):
        at = LEFT + 105 * number
        parts += [
            f'<circle cx="{at + 6}" cy="{top + 22}" r="5" fill="{colour}"/>',
            text(at + 16, top + 27, title, "note"),
        ]
    first, unit = top + 58, WIDE / (MOST - LEAST)
    one, bottom = LEFT - unit * LEAST, first + ROW * (len(lines) - 1) + 14
    box = f'y="{first - 16}" width="{one - LEFT:.1f}" height="{bottom - first + 16}"'
    parts.append(f'<rect x="{LEFT}" {box} fill="{ORANGE}" opacity="0.12"/>')
    for number, (title, found) in enumerate(lines.items()):
        y = first + ROW * number
        parts.append(text(LEFT - 12, y + 5, title, "note end"))
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + WIDE}" y2="{y}" stroke="{SOFT}" stroke-width="0.4"/>')
        for library, ratio in found:
            x = one + unit * math.log2(ratio)
            parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="5.5" fill="{LIBRARIES[library][1]}"/>')
        parts.append(text(END, y + 5, ", ".join(f"{ratio:.2g}" for _, ratio in found), "note end"))
    parts.append(f'<path d="M{one:.1f} {first - 16}V{bottom}" stroke="{BLUE}" stroke-width="2"/>')
    ticks = range(LEAST, MOST + 1)
    parts += [text(one + unit * power, bottom + 18, f"{2.0**power:g}", "note middle") for power in ticks]
    return [*parts, text(END, bottom + 18, "times as long", "note end")]
