# SPDX-License-Identifier: Apache-2.0
"""Quantizing on the host compared with the plain NumPy formula: ``python -m bench.host.quantize``.

Every format of `gpucast.quantize` and back, from and to FLOAT, BFLOAT16 and FLOAT16, in repeated calls with ``out=``.
The formulas are what a user of NumPy and ml_dtypes would write: whole-array arithmetic in float32 that ignores NaN,
infinity and ties, and allocates its results, with one code per byte. Beside them: a copy that reads and writes as many
bytes as our call does, into an array that is there.

In each round every side runs once, and the fastest round counts, so that a neighbour on the machine disturbs all sides
alike. Times are processor time of the one thread that does all the work: GPUCAST_HOST_THREADS has to be 1. The figures
are written to
bench/results/quantize-host-DATE.json; a table of them is part of docs/quantization.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.report import markdown
from bench.revision import FOLDER, machine
from bench.timing.times import quickest
from gpucast import PackedArray, cast, dequantize, quantize
from gpucast.core import extension
from gpucast.core.dtypes import DType, dtype
from gpucast.quantization import FORMATS, Format, quantize_on_host
from gpucast.quantization.formats import Parts

NDArray = npt.NDArray[Any]

#: More than the caches of a core hold.
SHAPE = (1024, 4096)
TYPES = ("FLOAT", "BFLOAT16", "FLOAT16")
DIRECTIONS = ("quantize", "dequantize")
_SEED = 2026


@dataclass(frozen=True)
class QuantizeMeasurement:
    """Speeds in M elements per second."""

    format: str
    #: The type that is quantized, or dequantized to.
    type: str
    direction: str
    ours: float
    formula: float
    #: Of a copy that reads and writes as many bytes; 0 in figures that were kept without it.
    copy: float = 0.0

    @property
    def ratio(self) -> float:
        """Above 1 is quicker than the formula."""
        return self.ours / self.formula


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.host.quantize", description=__doc__)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help="names of formats (default: all)")
    parser.add_argument("--type", choices=TYPES, action="append", help="a type of numbers (default: all)")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there")
    asked = parser.parse_args(arguments)
    if asked.out and extension.MODULE.THREADS != 1:
        parser.error(f"--out: times are of one thread; got GPUCAST_HOST_THREADS={extension.MODULE.THREADS}; expected 1")
    formats = {name: FORMATS[name] for name in asked.formats} or FORMATS
    rows = []
    for row in measured(formats, asked.type or TYPES, SHAPE, asked.repeats):
        speeds = f"{row.ours:8.0f}{row.formula:8.0f} {row.ratio:6.2f}, {row.copy / row.ours:6.1f} times a copy"
        print(f"{row.format:24}{row.type:10}{row.direction:12}{speeds}", flush=True)
        rows.append(row)
    if asked.out:
        asked.out.write_text(json.dumps(figures(rows, asked.repeats), indent=1) + "\n", encoding="utf-8")
    return 0


def measured(
    formats: dict[str, Format], types: Sequence[str], shape: tuple[int, int], repeats: int
) -> Iterator[QuantizeMeasurement]:
    """A row for every format, type and direction."""
    normal: NDArray = np.random.default_rng(_SEED).standard_normal(shape).astype(np.float32)
    for name, format in formats.items():
        for row in map(dtype, types):
            x = cast(normal, row)
            for direction, sides in zip(DIRECTIONS, _sides(x, format, row), strict=True):
                best = quickest(sides, repeats, clock=time.thread_time)
                ours, formula, copy = (round(x.size / best[side] / 1e6, 1) for side in ("ours", "formula", "copy"))
                yield QuantizeMeasurement(name, row.name, direction, ours, formula, copy)


def _sides(x: NDArray, format: Format, to: DType) -> Iterator[dict[str, Callable[[], object]]]:
    q, parts = quantize(x, format), quantize_on_host.quantize(x, format)
    y = dequantize(q, to)
    arrays = [part.data if isinstance(part, PackedArray) else part for part in q.parts().values() if part is not None]
    one, other = (np.ones((x.nbytes + sum(part.nbytes for part in arrays)) // 2, np.uint8) for _ in range(2))
    yield {
        "ours": lambda: quantize(x, format, out=q),
        "formula": lambda: quantize_formula(x, format),
        "copy": lambda: np.copyto(one, other),
    }
    yield {
        "ours": lambda: dequantize(q, to, out=y),
        "formula": lambda: dequantize_formula(parts, format, to),
        "copy": lambda: np.copyto(one, other),
    }


# ---- the formulas ----


def quantize_formula(x: NDArray, format: Format) -> tuple[NDArray, NDArray, NDArray | None]:
    """Codes, scales and zero points of a matrix, whose blocks (along the last axis) are whole."""
    element = format.element
    x, within = _in_blocks(x.astype(np.float32, copy=False), format)
    if format.zero_points:
        low = np.minimum(x.min(axis=within, keepdims=True), 0)
        high = np.maximum(x.max(axis=within, keepdims=True), 0)
        scale = (high - low) / np.float32(element.max - element.min)
        zero = np.clip(element.min - np.rint(low / scale), element.min, element.max)
        codes = np.clip(np.rint(x / scale) + zero, element.min, element.max).astype(element.numpy)
        return codes, scale, zero.astype(np.int8 if element.signed else np.uint8)
    amax = np.abs(x).max(axis=within, keepdims=True)
    if format.rule == "floor":
        scale = np.exp2(np.floor(np.log2(amax / np.float32(format.divisor))))
    elif format.rule == "up":
        scale = np.exp2(np.ceil(np.log2(amax / np.float32(format.divisor))))
    else:
        scale = amax / np.float32(format.divisor)
    if format.scale.name == "FLOAT8UE5M3":
        # NumPy has no such type: four significant bits.
        part, power = np.frexp(scale)
        scale = np.ldexp(np.rint(part * 16) / 16, power).astype(np.float32)
    divisor = scale
    if format.global_scale:
        whole = amax.max() / np.float32(format.divisor * format.scale.max)
        scale = (scale / whole).astype(format.scale.numpy)
        divisor = scale.astype(np.float32) * whole
    quotient = x / divisor
    if element.family == "int":
        quotient = np.rint(quotient)
    limit = np.float32(element.max)
    stored = scale if format.scale.numpy.names else scale.astype(format.scale.numpy)
    return np.clip(quotient, -limit, limit).astype(element.numpy), stored, None


def dequantize_formula(parts: Parts, format: Format, to: DType) -> NDArray:
    """The matrix that codes in whole blocks along the last axis stand for."""
    x, _ = _in_blocks(parts.data.astype(np.float32), format)
    scales = cast(parts.scales, "FLOAT") if parts.scales.dtype.names else parts.scales.astype(np.float32)
    scale = _of_blocks(scales, format)
    if parts.global_scale is not None:
        scale = scale * parts.global_scale
    if parts.zero_points is not None:
        x = x - _of_blocks(parts.zero_points.astype(np.float32), format)
    y: NDArray = (x * scale).reshape(parts.data.shape).astype(to.numpy, copy=False)
    return y


def _in_blocks(x: NDArray, format: Format) -> tuple[NDArray, Any]:
    """A matrix, reshaped so that some axes run within blocks; those axes."""
    if format.block == "tensor":
        return x, None
    if format.block == "axis":
        return x, 0
    rows, columns = x.shape
    length = format.block[-1]
    if format.min_ndim == 2:
        return x.reshape(rows // length, length, columns // length, length), (1, 3)
    return x.reshape(rows, columns // length, length), 2


def _of_blocks(x: NDArray, format: Format) -> NDArray:
    """Scales, reshaped so that they broadcast with `_in_blocks`."""
    if isinstance(format.block, str):
        return x
    return x[:, None, :, None] if format.min_ndim == 2 else x[:, :, None]


# ---- what is kept ----


def newest(folder: Path = FOLDER) -> dict[str, Any]:
    """The committed figures."""
    found: dict[str, Any] = json.loads(max(folder.glob("quantize-host-*.json")).read_text(encoding="utf-8"))
    return found


def table(figures: dict[str, Any]) -> str:
    """Markdown: a line for the formats of one element and scale, with the slowest and the quickest of them; and all
    that are slower than the formula."""
    rows = [QuantizeMeasurement(**row) for row in figures["rows"]]
    where, shape = figures["machine"], " x ".join(map(str, figures["shape"]))
    columns = [(direction, kind) for direction in DIRECTIONS for kind in TYPES]
    titles = [f"{'from' if direction == DIRECTIONS[0] else 'to'} {kind}" for direction, kind in columns]
    cells: dict[tuple[str, str], dict[tuple[str, str], list[float]]] = {}
    for row in rows:
        format = FORMATS[row.format]
        line = format.element.name, format.scale.name + (", zero points" if format.zero_points else "")
        cells.setdefault(line, {}).setdefault((row.direction, row.type), []).append(row.ratio)
    spans = (
        [*line, *(f"{min(of[column]):.1f} to {max(of[column]):.1f}" for column in columns)]
        for line, of in cells.items()
    )
    note = [
        f"Times as quick as the plain NumPy formula, slowest to quickest format; {shape} numbers, one core of",
        f"{where['processor']}, NumPy {where['numpy']}, {where['date']} (`python -m bench.host.quantize`):",
    ]
    slow = [f"`{row.format}` {row.direction} {row.type} {row.ratio:.2f}" for row in rows if row.ratio < 1]
    lines = [*note, "", markdown.table(["Element", "Scale", *titles], spans)]
    return "\n".join([*lines, "", f"Slower than the formula: {', '.join(slow) or 'none'}."])


def figures(rows: Sequence[QuantizeMeasurement], repeats: int) -> dict[str, Any]:
    """What is kept."""
    return {"machine": machine(), "shape": SHAPE, "repeats": repeats, "rows": [asdict(row) for row in rows]}


if __name__ == "__main__":
    raise SystemExit(main())
