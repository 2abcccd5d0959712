# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --quantize``: scaled and block formats on the GPU, compared with copies and other libraries.

The yardstick is our copy kernel in the same run: bytes read and written per second as a share of the copy's. The codes
and scales of the first rows are compared with the host's before any measurement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

import gpucast
from bench import gpu_cases
from gpucast.arrays.packed import PackedArray
from bench.cases.contenders import TorchTo
from bench.timing.machine import Machine
from bench.timing.times import Work, measure
from gpucast.core.dtypes import dtype
from gpucast.quantization import FORMATS

ROWS, COLUMNS = 1 << 14, 1 << 13
#: The number of random rows, which are compared; the memory is filled with copies of them.
DRAWN = 128
OURS = "gpucast.quantize"
_SAMPLES, _LIMIT = 50, 1.0


@dataclass(frozen=True)
class QuantizeCase:
    src: str
    format: str
    axis: int = -1
    transpose: bool | Literal["both"] = False

    def __str__(self) -> str:
        direction = {False: "", True: ", transposed", "both": ", both ways"}[self.transpose]
        return f"{self.src} to {self.format}{direction}{f', axis {self.axis}' if self.axis != -1 else ''}"

    def __call__(self, x: Any) -> Any:
        """The call of gpucast that is measured."""
        return gpucast.quantize(x, self.format, axis=self.axis, transpose=self.transpose)

    @property
    def reads(self) -> int:
        """How often x has to be read: twice if a scale covers more elements than a block of threads holds, or if a
        global scale has to be computed before the others."""
        format = FORMATS[self.format]
        return 2 if format.global_scale or isinstance(format.block, str) else 1

    def alternatives(self) -> dict[str, Callable[[Any], object]]:
        """Alternative calls with the same results, for comparison."""
        if self.transpose != "both":
            return {}
        one, other = (replace(self, transpose=transpose) for transpose in (False, True))
        return {"gpucast, two calls": lambda x: (one(x), other(x))}


_FORMATS = (
    "mxfp8e4m3 mxfp4 nvfp4 float8e4m3fn_1x128 float8e4m3fn_128x128 float8e4m3fn_tensor int8_axis int4_128".split()
)
_BOTH = "mxfp8e4m3 mxfp4 nvfp4 float8e4m3fn_1x128 float8e4m3fn_128x128 float8e4m3fn_tensor".split()
CASES = (
    *(QuantizeCase(src, format) for format in _FORMATS for src in ("BFLOAT16", "FLOAT")),
    *(QuantizeCase(src, format, transpose="both") for format in _BOTH for src in ("BFLOAT16", "FLOAT")),
    *(QuantizeCase("BFLOAT16", format, 0) for format in ("mxfp8e4m3", "mxfp4", "float8e4m3fn_1x128")),
    QuantizeCase("BFLOAT16", "mxfp8e4m3", transpose=True),
)


def along_rows(case: QuantizeCase) -> bool:
    """Whether rivals are measured on a case: only along rows."""
    return (case.axis, case.transpose) == (-1, False)


class CompiledQuantize(TorchTo):
    """torch.compile of the usual code for float8 with FLOAT scales."""

    name = "torch.compile"
    blocks = {"float8e4m3fn_1x128": 128, "float8e4m3fn_tensor": 0}  # noqa: RUF012 (a constant)

    def has(self, case: QuantizeCase) -> bool:
        return along_rows(case) and case.format in self.blocks

    def prepare_quantize(self, case: QuantizeCase, data: Any) -> Callable[[], object]:
        if case.format not in self.blocks:
            raise NotImplementedError("no lines of its own")
        block = self.blocks[case.format]
        torch, x = self.torch, self.flat(data, dtype(case.src)).view(-1, COLUMNS)

        def quantize(x: Any) -> Any:
            wide = (x.view(-1, block) if block else x).float()
            amax = wide.abs().amax(-1, keepdim=True) if block else wide.abs().amax()
            scale = amax / 448
            return (wide / scale).to(torch.float8_e4m3fn), scale

        compiled = torch.compile(quantize)
        return lambda: compiled(x)


class TorchAo(TorchTo):
    """torchao's MX formats, compiled."""

    name = "torchao to_mx"
    elements = {"mxfp8e4m3": "float8_e4m3fn", "mxfp4": "float4_e2m1fn_x2"}  # noqa: RUF012 (a constant)

    def has(self, case: QuantizeCase) -> bool:
        return along_rows(case) and case.format in self.elements

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        from torchao.prototype.mx_formats.mx_tensor import to_mx

        self.to_mx = self.torch.compile(to_mx, fullgraph=True)

    def prepare_quantize(self, case: QuantizeCase, data: Any) -> Callable[[], object]:
        element = self.elements.get(case.format)
        if element is None:
            raise NotImplementedError("no MX format")
        kind, x = getattr(self.torch, element), self.flat(data, dtype(case.src)).view(-1, COLUMNS)
        return lambda: self.to_mx(x, kind, 32)


class TransformerEngineQuantize(TorchTo):
    """TransformerEngine's quantizers, rows only."""

    name = "TransformerEngine"

    def has(self, case: QuantizeCase) -> bool:
        return along_rows(case) and case.format == "mxfp8e4m3"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        import transformer_engine.pytorch  # noqa: F401 (loads the library)
        import transformer_engine_torch as engine
        from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer

        self.quantizer = MXFP8Quantizer(engine.DType.kFloat8E4M3, rowwise=True, columnwise=False)

    def prepare_quantize(self, case: QuantizeCase, data: Any) -> Callable[[], object]:
        if case.format != "mxfp8e4m3":
            raise NotImplementedError("not measured")
        x = self.flat(data, dtype(case.src)).view(-1, COLUMNS)
        return lambda: self.quantizer(x)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases on the GPU."""
    kinds = [CompiledQuantize, TorchAo, TransformerEngineQuantize]
    return gpu_cases.run(CASES, kinds, measure_case, report, arguments.lines)


def measure_case(
    machine: Machine, case: QuantizeCase, rivals: Sequence[Any], rows: int = ROWS, columns: int = COLUMNS
) -> list[dict[str, Any]]:
    """A result line for ours, for each copy kernel and each rival. `problem`: our results are wrong; `left_out`: why it
    was not measured."""
    src = dtype(case.src)
    data, drawn = filled(machine, case, rows, columns)
    read = data.nbytes
    x = data.view(src.numpy).reshape(rows, columns)
    problem = difference(case(x[: len(drawn)]), case(drawn))
    moved = data.nbytes + sum(q.nbytes for q in results_of(case(x)))
    # So that a copy moves as many bytes.
    half = moved // 32 * 16
    target = machine.empty(half)
    calls: dict[str, Callable[[], object]] = {OURS: lambda: case(x)}
    calls |= {name: lambda call=call: call(x) for name, call in case.alternatives().items()}  # type: ignore[misc]
    copies = machine.copy_kernels()
    for name, copy in copies.items():
        calls[name] = lambda copy=copy: copy(target, data[:half])  # type: ignore[misc]
    lines: dict[str, dict[str, Any]] = {}
    works = []
    for name, call in [*calls.items(), *((rival.name, rival) for rival in rivals)]:
        line = lines[name] = {"case": str(case), "name": name}
        try:
            if name not in calls:
                # Rivals are measured along rows only.
                if not along_rows(case):
                    raise NotImplementedError("measured along rows only")
                call = call.prepare_quantize(case, data)
            call()
        except Exception as error:
            if name in calls:
                raise
            line["left_out"] = f"{type(error).__name__}: {error}"
            continue
        works.append(Work(name, lambda i, call=call: call(), 1))  # type: ignore[misc]
    if problem:
        lines[OURS]["problem"] = problem
    times = dict(
        zip((work.name for work in works), measure(machine, works, samples=_SAMPLES, limit=_LIMIT), strict=True)
    )
    best = min(one.median for name, one in times.items() if name in copies)
    for name, one in times.items():
        lines[name] |= {
            **asdict(one),
            "bytes": moved,
            "gb_per_s": moved / one.median / 1e9,
            "share_of_copy": best / one.median,
        }
        if name == OURS and case.reads > 1:
            # The best possible for such a format is a copy of the bytes that have to be moved.
            lines[name] |= {"reads": case.reads, "share_of_its_copy": best / one.median * (moved + read) / moved}
    machine.release()
    return list(lines.values())


def filled(machine: Machine, case: QuantizeCase, rows: int, columns: int) -> tuple[Any, np.ndarray[Any, Any]]:
    """The bytes of an array on the machine, and the rows that it repeats."""
    src = dtype(case.src)
    random = np.random.default_rng(0).standard_normal((min(DRAWN, rows), columns)).astype(np.float32)
    drawn = gpucast.cast(random, src)
    data = machine.empty(rows * columns * src.bits // 8)
    codes = np.ascontiguousarray(drawn).view(np.uint8).reshape(-1)
    machine.upload(data[: codes.size], codes)
    done = codes.size
    while done < data.nbytes:
        more = min(done, data.nbytes - done)
        machine.copy(data[done : done + more], data[:more])
        done += more
    return data, drawn


def results_of(made: Any) -> tuple[Any, ...]:
    """One `Quantized`, or both."""
    return made if isinstance(made, tuple) else (made,)


def difference(got: Any, wanted: Any) -> str:
    for ours, theirs in zip(results_of(got), results_of(wanted), strict=True):
        for name, part in ours.get().parts().items():
            one, other = (x.data if isinstance(x, PackedArray) else x for x in (part, theirs.parts()[name]))
            if np.asarray(one).tobytes() != np.asarray(other).tobytes():
                return f"{name} are not the host's"
    return ""


def report(lines: Sequence[dict[str, Any]]) -> None:
    """A table of all lines."""
    for case in dict.fromkeys(line["case"] for line in lines):
        print(f"\n{case}")
        for line in lines:
            if line["case"] != case:
                continue
            if "median" not in line:
                print(f"  {line['name']:30} left out: {line['left_out']}", file=sys.stderr)
                continue
            note = f"  WRONG: {line['problem']}" if line.get("problem") else ""
            if line.get("reads"):
                note = f"  (x has to be read twice: {line['share_of_its_copy']:.1%} of a copy of all bytes moved){note}"
            print(
                f"  {line['name']:30} {1e6 * line['median']:9.1f} us {line['gb_per_s']:8.0f} GB/s "
                f"{line['share_of_copy']:6.1%} of a copy{note}"
            )
