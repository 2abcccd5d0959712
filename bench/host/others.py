# SPDX-License-Identifier: Apache-2.0
"""Quantizing on the host beside llama.cpp's and torchao's own: ``python -m bench.host.others``.

llama.cpp's functions are those of ggml, from the package libggml-python (``--ggml`` names its folder where it is
installed elsewhere); torchao's are what its tensors call on a CPU, not compiled. Each quantizes FLOATs in rows, and
back. Formats with the same numbers and scales are few: ours is the nearest one, so that a row compares work of the same
kind, not the same bytes.

Every side works in one thread, and its processor time counts: the fastest of interleaved rounds. Rows of libraries
that are not there are left out. The figures are written with ``--out``; a table of them is part of docs/performance.md.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.report import markdown
from bench.revision import FOLDER, machine
from bench.timing.times import quickest
from gpucast import dequantize, quantize
from gpucast.core import extension

NDArray = npt.NDArray[Any]
Call = Callable[[], object]

#: More than the caches of a core hold.
SHAPE = (1024, 4096)
_SEED = 2026


@dataclass(frozen=True)
class Comparison:
    """M elements per second."""

    library: str
    theirs: str
    format: str
    direction: str
    ours_speed: float
    their_speed: float

    @property
    def ratio(self) -> float:
        """Above 1 ours is quicker."""
        return self.ours_speed / self.their_speed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.host.others", description=__doc__)
    parser.add_argument("--ggml", type=Path, metavar="FOLDER", help="with libggml-base.so and libggml-cpu.so")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there")
    asked = parser.parse_args(arguments)
    if extension.MODULE.THREADS != 1:
        parser.error(f"times are of one thread; got GPUCAST_HOST_THREADS={extension.MODULE.THREADS}; expected 1")
    x = np.random.default_rng(_SEED).standard_normal(SHAPE).astype(np.float32)
    rows, versions = [], {}
    for sides, name, version in ((_ggml(x, asked.ggml), "ggml", _ggml_version(asked.ggml)), _torchao(x)):
        versions[name] = version
        for theirs, format, calls in sides:
            for row in _compared(name, theirs, format, x, calls, asked.repeats):
                print(f"{row.library:10}{row.theirs:28}{row.format:14}{row.direction:12}"
                      f"{row.ours_speed:8.0f}{row.their_speed:8.0f} {row.ratio:7.2f}", flush=True)  # fmt: skip
                rows.append(row)
    if asked.out:
        figures = {"machine": machine(), "versions": versions, "shape": SHAPE, "rows": [asdict(row) for row in rows]}
        asked.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def _compared(
    library: str, theirs: str, format: str, x: NDArray, calls: tuple[Call, Call], repeats: int
) -> Iterator[Comparison]:
    q = quantize(x, format)
    y = dequantize(q)
    ours: tuple[Call, Call] = (lambda: quantize(x, format, out=q)), (lambda: dequantize(q, out=y))
    for direction, own, other in zip(("quantize", "dequantize"), ours, calls, strict=True):
        best = quickest({"ours": own, "theirs": other}, repeats, clock=time.thread_time)
        speeds = (round(x.size / best[side] / 1e6, 1) for side in ("ours", "theirs"))
        yield Comparison(library, theirs, format, direction, *speeds)


# ---- llama.cpp ----

#: Of ggml: the type's name, its number in `enum ggml_type`, the bytes of so many elements, and our format.
_GGML = (
    ("q8_0", 34, 32, "int8_32"),
    ("q4_0", 18, 32, "int4_32"),
    ("q4_1", 20, 32, "uint4_zp_32"),
    ("mxfp4", 17, 32, "mxfp4"),
    ("nvfp4", 36, 64, "nvfp4"),
)


def _ggml_folder(asked: Path | None) -> Path | None:
    if asked is not None:
        return asked
    spec = importlib.util.find_spec("libggml")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]) / "lib64" if places else None


def _ggml_version(asked: Path | None) -> str:
    folder = _ggml_folder(asked)
    # The library's file is named after its version.
    named = () if folder is None else sorted(folder.glob("libggml-base.so.*.*"))
    return named[-1].name.partition(".so.")[2] if named else ""


def _ggml(x: NDArray, asked: Path | None) -> Iterator[tuple[str, str, tuple[Call, Call]]]:
    folder = _ggml_folder(asked)
    if folder is None:
        return
    base = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
    processor = ctypes.CDLL(str(folder / "libggml-cpu.so"), ctypes.RTLD_GLOBAL)
    # It fills its tables of FLOAT16.
    processor.ggml_cpu_init()
    rows, columns = x.shape
    for name, size, each, format in _GGML:
        codes, back = np.ones(x.size // each * size, np.uint8), np.ones_like(x)
        # Row by row with the loops for this processor, as for activations.
        there, again = getattr(processor, f"quantize_row_{name}"), getattr(base, f"dequantize_row_{name}")
        for function in (there, again):
            function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64), None
        steps = [(x[i].ctypes.data, codes[i * columns // each * size :].ctypes.data) for i in range(rows)]

        def quantized(there: Any = there, steps: Any = steps) -> None:
            for source, target in steps:
                there(source, target, columns)

        def numbers(again: Any = again, codes: NDArray = codes, back: NDArray = back) -> None:
            again(codes.ctypes.data, back.ctypes.data, x.size)

        quantized()
        numbers()
        # That the calls do what their names say: 4 bits are the fewest.
        assert np.abs(back - x).max() < 1, name
        yield name, format, (quantized, numbers)


# ---- torchao ----


def _torchao(x: NDArray) -> tuple[Iterator[tuple[str, str, tuple[Call, Call]]], str, str]:
    if importlib.util.find_spec("torchao") is None:
        return iter(()), "torchao", ""
    return _torchao_calls(x), "torchao", importlib.metadata.version("torchao")


def _torchao_calls(x: NDArray) -> Iterator[tuple[str, str, tuple[Call, Call]]]:
    import torch
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.quantization.quant_primitives import (
        MappingType,
        choose_qparams_affine,
        dequantize_affine,
        quantize_affine,
    )

    torch.set_num_threads(1)
    given = torch.from_numpy(x)
    for length, most, target, format in ((32, 127, torch.int8, "int8_32"), (32, 7, torch.int8, "int4_32")):
        block = (1, length)

        def affine(block: Any = block, most: int = most, target: Any = target) -> Any:
            scale, zero = choose_qparams_affine(given, MappingType.SYMMETRIC, block, target, -most - 1, most)
            return quantize_affine(given, block, scale, zero, target, -most - 1, most), scale, zero

        parts = affine()

        def numbers(block: Any = block, most: int = most, target: Any = target, parts: Any = parts) -> Any:
            codes, scale, zero = parts
            return dequantize_affine(codes, block, scale, zero, target, -most - 1, most)

        yield f"affine, {most.bit_length() + 1} bits, block {length}", format, (affine, numbers)
    for element, format in ((torch.float8_e4m3fn, "mxfp8e4m3"), (torch.float4_e2m1fn_x2, "mxfp4")):

        def mx(element: Any = element) -> Any:
            return MXTensor.to_mx(given, element, 32)

        q = mx()
        yield f"MXTensor, {element}".replace("torch.", ""), format, (mx, partial(q.dequantize, torch.float32))

    def nvfp4() -> Any:
        return NVFP4Tensor.to_nvfp4(given, per_tensor_scale=per_tensor_amax_to_scale(given.abs().max()))

    q = nvfp4()
    yield "NVFP4Tensor", "nvfp4", (nvfp4, partial(q.dequantize, torch.float32))


# ---- what is kept ----


def newest(folder: Path = FOLDER) -> dict[str, Any]:
    """The committed figures."""
    found: dict[str, Any] = json.loads(max(folder.glob("quantize-others-*.json")).read_text(encoding="utf-8"))
    return found


def table(figures: dict[str, Any]) -> str:
    """Markdown: a line for each function of the others."""
    where, shape = figures["machine"], " x ".join(map(str, figures["shape"]))
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in (Comparison(**row) for row in figures["rows"]):
        text = f"{row.ours_speed:,.0f} / {row.their_speed:,.0f} = {row.ratio:.1f}"
        cells.setdefault((row.library, row.theirs, row.format), {})[row.direction] = text
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    note = [
        f"M elements a second, ours / theirs; {shape} FLOATs, one thread of {where['processor']}, {versions},",
        f"{where['date']}, commit {where['commit']} (`python -m bench.host.others`):",
    ]
    titles = ["Library", "Theirs", "Ours", "Quantize", "Dequantize"]
    lines = ([*names, of["quantize"], of["dequantize"]] for names, of in cells.items())
    return "\n".join([*note, "", markdown.table(titles, lines)])


if __name__ == "__main__":
    raise SystemExit(main())
