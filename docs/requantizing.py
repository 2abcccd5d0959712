# SPDX-License-Identifier: Apache-2.0
"""Write docs/requantizing.md: what quantizing dequantized numbers again keeps, by format and recipe.

``python docs/requantizing.py`` tries blocks whose largest magnitude is each BFLOAT16, as many FLOATs, and each of the
2^23 FLOATs from 1 to 2 (``--quick``: a share of them), alone and with other numbers from that down to 2^-18 of it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tables import markdown

import gpucast
from gpucast.quantization import FORMATS, RECIPES, Format, Quantized, recipes

PAGE = Path(__file__).resolve().parent / "requantizing.md"
TYPES = ("FLOAT", "BFLOAT16", "FLOAT16")
NDArray = np.ndarray[Any, Any]

INTRO = """\
# What requantizing keeps

Numbers that were quantized, dequantized to a type, and quantized again by the same format: do they have the codes and
scales that they had? `python docs/requantizing.py` tries each format and recipe, and writes this page.

- **kept**: the same codes and scales.
- **numbers**: other codes and scales, for the same numbers: a third round changes nothing.
- **changes**: other numbers.

Where something is not kept an example follows for each type: the numbers of a block (the rest is 0; with a global
scale, of an array), none of which can be left out, and what becomes of them. Of the blocks that were tried it is the
one with the fewest numbers, and the shortest largest magnitude. To keep codes and scales in any case, quantize by the
scales that the numbers had:

```python
import numpy as np
import gpucast

q = gpucast.quantize(np.linspace(-3, 3, 64, dtype=np.float32), "mxfp4_up")
y = q.dequantize("BFLOAT16")
again = gpucast.quantize(y, "mxfp4_up", scales_of=q)
assert (again.scales == q.scales).all()
```

The codes then come back whenever the type holds a code's number to within half a step of codes: always in the table
below, but for the integers of 8 bits with zero points by way of BFLOAT16 (255 steps need 8 bits and one to round by).

Each cell is proved or has a counterexample; one that is neither would end in "?". Numbers are in the normal range of
the type (FLOAT16 ends at 65504), and largest magnitudes from 2^-100 on. The second round sees codes times scales, and
the largest magnitude has the largest code, so that this and the scale decide on everything. "Kept" and "numbers" are
proved by trying the largest magnitude alone:

- Scales that are powers of two, or FLOAT8E4M3FN with no global one: codes times scales are exact. Scales and codes
  change at magnitudes of at most 7 significant bits, so the BFLOAT16, which have 8, reach every largest code with every
  scale. All of them are tried.
- FLOAT scales, by way of FLOAT: all 2^23 fractions of the largest magnitude are tried, and the scale was the same;
  other exponents differ by powers of two, which are exact, and a smallest magnitude of a formula is that of both
  rounds. A number then differs from its code times the scale by 2^-23 of it, and codes are farther from each other.
- `int2` by way of BFLOAT16 and FLOAT16: codes are -1, 0 and 1, so each number is 0 or the scale, rounded to that type.
  The second round's scale is this number, which the type holds.
- Two levels of scales, by way of FLOAT: all 2^23 fractions of the array's largest magnitude are tried, and the global
  scale was the same. A block's scale is at least the smallest normal one (`torchao-nvfp4` takes no smaller). It is
  rounded by a 16th at most, so that the largest code is 6, and the second round finds it within 2^-22; or it is the
  smallest one in both rounds.

Formats that differ in the shape of their blocks alone share a row.

"""


def one_block(format: Format, length: int) -> Format:
    """The format with blocks of a row; the arithmetic does not depend on their shape."""
    return replace(format, block=(length,))


def cases(format: Format, source: str, quick: bool) -> Iterator[NDArray]:
    """Matrices of blocks, a row each; with a global scale a row of several has one of its own."""
    rng = np.random.default_rng(3)
    step = 64 if quick else 1
    every = np.arange(1, 0x7F80, dtype=np.uint16).view(gpucast.dtype("BFLOAT16").numpy).astype(np.float32)
    tops = every if step == 1 else every[:: step // 8]
    width = 64 if format.global_scale else 16
    # With as many FLOATs of any length.
    tops = np.concatenate(
        [tops, (tops.view(np.uint32) | rng.integers(1, 1 << 16, tops.size, np.uint32)).view(np.float32)]
    )
    rows = np.repeat(tops[:, None], width, axis=1)
    down = 18 * rng.random((tops.size, width)) ** 2
    if format.global_scale:
        down += np.repeat(18 * rng.random((tops.size, width // 16)), 16, axis=1)
    rows[:, 1:] *= (2.0 ** -down[:, 1:] * rng.choice([-1, 1], (tops.size, width - 1))).astype(np.float32)
    alone = rows.copy()
    alone[:, 1:] = 0
    yield gpucast.cast(alone, source)
    if source == "FLOAT" and is_decided_by_one(format):
        for part in np.array_split(np.arange(0x3F800000, 0x40000000, step, dtype=np.uint32), 16):
            yield part.view(np.float32)[:, None]
    yield gpucast.cast(rows, source)


def is_decided_by_one(format: Format) -> bool:
    """Whether the largest magnitude decides on the scale of a block, or on the global scale of an array."""
    return not (format.zero_points or format.rule == "4over6")


def quantized(x: NDArray, format: Format) -> Quantized:
    one = one_block(format, min(16, x.shape[1]))
    if not format.global_scale:
        return gpucast.quantize(x, one)
    amax = np.abs(gpucast.cast(x, "FLOAT")).max(axis=1)
    return gpucast.quantize(x, one, amax=np.where(amax == 0, np.float32(1), amax))


@dataclass
class Verdict:
    word: str = "kept"
    #: A counterexample, if there is one.
    example: str = ""


def codes_of(q: Quantized) -> NDArray:
    parts = [q.data.get() if hasattr(q.data, "get") else q.data, q.scales, q.zero_points, q.global_scale]
    rows = q.shape[0]
    return np.hstack(
        [np.ascontiguousarray(part).reshape(rows, -1).view(np.uint8) for part in parts if part is not None]
    )


def rounds(x: NDArray, format: Format, to: str) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """The numbers of rows after one round and two; which rows have other codes or scales alone, and other numbers."""
    q = quantized(x, format)
    y = q.dequantize(to)
    again = quantized(y, format)
    z = again.dequantize(to)
    moved = (y.astype(np.float64) != z.astype(np.float64)).any(axis=1)
    return y, z, (codes_of(q) != codes_of(again)).any(axis=1) & ~moved, moved


def judge(format: Format, source: str, to: str, quick: bool) -> Verdict:
    found = Verdict()
    row = gpucast.dtype(to)
    least, most = float(row.value(1 << row.mantissa_bits)), float(row.max)
    for x in cases(format, source, quick):
        exact = np.abs(quantized(x, format).dequantize("DOUBLE"))
        inside = ((exact == 0) | ((exact >= least) & (exact <= most))).all(axis=1)
        x = x[inside & (exact[:, 0] > 0) & (np.abs(x[:, 0].astype(np.float64)) >= 2.0**-100)]
        if not x.size:
            continue
        *_, other, moved = rounds(x, format, to)
        for word, rows in (("changes", moved), ("numbers", other)):
            if rows.any() and found.word not in (word, "changes"):
                block = min(x[rows], key=_length)
                found = Verdict(word, shrunk(block, format, to, word == "changes"))
        if found.word == "changes":
            return found
    return found if is_decided_by_one(format) else replace(found, word=f"{found.word}?")


def shrunk(block: NDArray, format: Format, to: str, moves: bool) -> str:
    """A block that is not kept either, with fewer numbers; and what becomes of these."""
    for i in range(1, block.size):
        fewer = block.copy()
        fewer[i] = 0
        *_, other, moved = rounds(fewer[None], format, to)
        block = fewer if (moved if moves else other)[0] else block
    y, z, *_ = rounds(block[None], format, to)
    at = block != 0
    given, first, second = (", ".join(f"{number:.9g}" for number in one[at].tolist()) for one in (block, y[0], z[0]))
    return f"{given} becomes {first}" + (f", then {second}" if moves else "")


def _length(row: NDArray) -> tuple[int, float]:
    """How long a block is to write."""
    top = float(row[0])
    return int(np.count_nonzero(row)), 4 * len(top.hex().split("p")[0].rstrip("0")) + abs(np.log2(abs(top)))


def kinds() -> list[tuple[list[str], Format, str]]:
    """The names of each row, one of its formats, and the type that is quantized from."""
    found: dict[Any, tuple[list[str], Format, str]] = {}
    everything = [(name, format, "FLOAT") for name, format in FORMATS.items()]
    everything += [("nvfp4_4over6", recipes.find("nvfp4_4over6", "docs"), "FLOAT")]
    everything += [(name, recipe.format, recipe.sources[0]) for name, recipe in RECIPES.items()]
    for name, format, source in everything:
        names, *_ = found.setdefault((replace(format, name="", block=(16,)), source), ([], format, source))
        shown = name if name in RECIPES else re.sub(r"_(tensor|axis|\d+x?\d*)$", "", name)
        names += [shown] * (shown not in names)
    return list(found.values())


def table(quick: bool) -> str:
    lines = []
    for names, format, source in kinds():
        types = [to for to in TYPES if source == "FLOAT" or to != "FLOAT"]
        with np.errstate(all="ignore"):
            verdicts = {to: judge(format, source, to, quick) for to in types}
        examples: dict[str, list[str]] = {}
        for to, one in verdicts.items():
            if one.example:
                examples.setdefault(one.example, []).append(to)
        shown = "; ".join(f"{', '.join(types)}: {example}" for example, types in examples.items())
        cells = [verdicts[to].word if to in verdicts else "" for to in TYPES]
        lines.append([", ".join(f"`{name}`" for name in names), *cells, shown])
    return markdown(["Format", *TYPES, "Examples"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="try a share of the blocks")
    PAGE.write_text(INTRO + table(parser.parse_args().quick) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
