# SPDX-License-Identifier: Apache-2.0
"""``python docs/pictures.py`` draws what types and scales do into ``docs/static``, from what gpucast computes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

import gpucast
from gpucast.core.dtypes import dtype
from gpucast.quantization import FORMATS

FOLDER = Path(__file__).resolve().parent / "static"
#: The colours are seen on white and on black; the ink changes with the page.
SOFT, BLUE, ORANGE = "#8a8f98", "#3a93bb", "#d9691f"


def number_lines() -> str:
    """The values of narrow types from 0 to 8, one line each."""
    names = ("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT6E2M3", "FLOAT6E3M2", "FLOAT4E2M1", "INT4")
    left, wide, top, row = 150, 560, 70, 40
    parts = [text(16, 28, "Where the numbers are: values from 0 to 8", "title")]
    parts += [text(left + wide + 30, top - 24, "how many", "note end")]
    for line, name in enumerate(names):
        y = top + line * row
        values = sorted({value for value in finite(name) if 0 <= value <= 8})
        parts += [
            text(left - 14, y + 5, name, "end"),
            f'<line x1="{left}" y1="{y}" x2="{left + wide}" y2="{y}" stroke="{SOFT}"/>',
            *(f'<line x1="{x}" y1="{y - 11}" x2="{x}" y2="{y + 11}" stroke="{BLUE}" stroke-width="1.6"/>'
              for x in (round(left + wide * value / 8, 1) for value in values)),
            text(left + wide + 12, y + 5, str(len(values)), "note"),
        ]  # fmt: skip
    bottom = top + len(names) * row
    parts += [text(left + wide * tick / 8, bottom, str(tick), "middle") for tick in range(9)]
    return svg(760, bottom + 20, "The values of six narrow types from 0 to 8 on number lines", parts)


def saturation() -> str:
    """What becomes of numbers that a float8 type has no room for."""
    left, low, wide, high, most = 70, 250, 620, 190, 640.0
    x = np.linspace(0, most, 641, dtype=np.float32)
    kept, dropped = (
        gpucast.cast(x, "FLOAT8E4M3FN", saturate=saturate).astype(np.float32) for saturate in (True, False)
    )

    def path(values: np.ndarray, colour: str, width: float) -> str:
        points = " ".join(
            f"{left + wide * float(a) / most:.1f},{low - high * float(b) / 500:.1f}"
            for a, b in zip(x, values, strict=True)
            if np.isfinite(b)
        )
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'

    end = float(x[np.isfinite(dropped)].max())
    parts = [
        text(16, 28, "Out of range: casts to FLOAT8E4M3FN, whose largest number is 448", "title"),
        f'<line x1="{left}" y1="{low}" x2="{left + wide}" y2="{low}" stroke="{SOFT}"/>',
        f'<line x1="{left}" y1="{low}" x2="{left}" y2="{low - high}" stroke="{SOFT}"/>',
        path(kept, BLUE, 6),
        path(dropped, ORANGE, 2),
        text(left + wide, low - high * 448 / 500 - 10, "by default: 448", "end", BLUE),
        text(left + wide, low - high * 448 / 500 + 40, f"saturate=False: NaN above {end:.0f}", "end", ORANGE),
        *(text(left + wide * tick / most, low + 20, str(tick), "middle") for tick in range(0, 641, 128)),
        *(text(left - 8, low - high * tick / 500 + 5, str(tick), "end") for tick in (0, 128, 256, 448)),
        text(left + wide / 2, low + 40, "number that is cast", "middle"),
    ]
    return svg(760, low + 56, "A cast to FLOAT8E4M3FN follows its source up to 448 and then stays there", parts)


def block() -> str:
    """32 numbers that share one scale."""
    x = np.random.default_rng(4).normal(0, 0.04, (1, 32)).astype(np.float32)
    q = gpucast.quantize(x, "mxfp4")
    scale, back = float(q.scales.astype(np.float32)[0, 0]), q.dequantize()
    left, middle, wide, high = 90, 190, 620, 130
    top = 6 * scale

    def y(value: float) -> float:
        return round(middle - high * value / top, 1)

    step = wide / 32
    levels = sorted({value * scale for value in finite("FLOAT4E2M1")})
    parts = [text(16, 28, f"A block of 32 numbers in FLOAT4E2M1 with one scale, {scale:g}", "title")]
    parts += [
        f'<line x1="{left}" y1="{y(v)}" x2="{left + wide}" y2="{y(v)}" stroke="{SOFT}" stroke-opacity="0.4"/>'
        for v in levels
    ]
    parts += [text(left - 8, y(v) + 4, f"{v / scale + 0:g}", "end note") for v in levels if v / scale % 1 == 0]
    for i, (value, coded) in enumerate(zip(x[0], back[0], strict=True)):
        at = round(left + step * (i + 0.5), 1)
        parts += [
            f'<line x1="{at}" y1="{y(0)}" x2="{at}" y2="{y(float(value))}" stroke="{SOFT}" stroke-width="7"/>',
            f'<circle cx="{at}" cy="{y(float(coded))}" r="4.5" fill="{BLUE}"/>',
        ]
    bottom = middle + high + 34
    parts += [
        text(left, bottom, "grey: the numbers", "note"),
        text(left + 150, bottom, "blue: what is stored, a code (left) times the scale", "note", BLUE),
    ]
    return svg(
        760, bottom + 16, "32 numbers as bars, and what a block of FLOAT4E2M1 with one scale keeps of them", parts
    )


def quantization_error() -> str:
    """The figures of docs/quantization_error.py: a row for every format, a mark for each kind of data."""
    found = json.loads((FOLDER.parent.parent / "bench" / "results" / "quantization-error.json").read_text("utf-8"))
    # Signed and unsigned integers with zero points give the same numbers: the unsigned ones stand for both.
    rows = {
        name: row
        for name, row in found["formats"].items()
        if not (FORMATS[name].zero_points and FORMATS[name].element.signed)
    }
    kinds = dict(zip(next(iter(rows.values()))["sqnr"], (SOFT, BLUE, "#f0a868", ORANGE), strict=True))
    left, wide, top, row_height, most = 330, 400, 74, 17, 50
    parts = [text(16, 28, "Signal to quantization noise (dB): more is better", "title")]
    for number, (kind, colour) in enumerate(kinds.items()):
        x = left + 105 * number
        parts += [f'<circle cx="{x}" cy="48" r="5" fill="{colour}"/>', text(x + 10, 53, kind, "note")]
    for line, (name, row) in enumerate(rows.items()):
        y = top + line * row_height
        parts.append(f'<line x1="{left}" y1="{y}" x2="{left + wide}" y2="{y}" stroke="{SOFT}" stroke-width="0.4"/>')
        parts.append(text(left - 12, y + 4, f"{name}  {row['bits']:.4g} bits", "note end"))
        for kind, decibels in row["sqnr"].items():
            x = left + wide * max(decibels, 0) / most
            parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{kinds[kind]}"/>')
    bottom = top + len(rows) * row_height + 6
    parts += [text(left + wide * tick / most, bottom, str(tick), "note middle") for tick in range(0, most + 1, 10)]
    return svg(left + wide + 30, bottom + 16, "The error of every format on random numbers of four kinds", parts)


PICTURES = {
    "number-lines.svg": number_lines,
    "saturation.svg": saturation,
    "block.svg": block,
    "quantization-error.svg": quantization_error,
}


def finite(name: str) -> Iterable[float]:
    row = dtype(name)
    return (float(value) for value in map(row.value, range(1 << row.bits)) if np.isfinite(float(value)))


def text(x: float, y: float, words: str, classes: str = "", colour: str = "") -> str:
    fill = f' style="fill: {colour}"' if colour else ""
    return f'<text x="{x:g}" y="{y:g}" class="{classes}"{fill}>{escape(words)}</text>'


def svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """A picture without a background, whose text is dark on light pages and light on dark ones."""
    style = (
        "text { font: 14px system-ui, 'DejaVu Sans', sans-serif; fill: #222222 } .title { font-size: 18px; "
        "font-weight: 600 } .note { font-size: 12.5px } .end { text-anchor: end } .middle { text-anchor: middle } "
        "@media (prefers-color-scheme: dark) { text { fill: #dddddd } }"
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        *parts,
        "</svg>\n",
    ])  # fmt: skip


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
