# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --quantize``: scaled and block formats on the GPU, beside copies and other libraries.

The yardstick is our copy kernel in the same run: bytes read and written per second as a share of the copy's. The codes
and scales of the first rows are compared with the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

import gpucast
from bench.cases.contenders import TorchTo, available
from bench.gpu.calls import Call, Line, measure_calls
from bench.timing.machine import Machine
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.quantization import FORMATS

ROWS, COLUMNS = 1 << 14, 1 << 13
#: The number of random rows, which are compared; the memory is filled with copies of them.
DRAWN = 128
OURS = "gpucast.quantize"


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


_FORMATS = (
    "mxfp8e4m3 mxfp4 nvfp4 float8e4m3fn_1x128 float8e4m3fn_128x128 float8e4m3fn_tensor int8_axis int4_128".split()
)
_BOTH = _FORMATS[:-2]
CASES = (
    *(QuantizeCase(src, format) for format in _FORMATS for src in ("BFLOAT16", "FLOAT")),
    *(QuantizeCase(src, format, transpose="both") for format in _BOTH for src in ("BFLOAT16", "FLOAT")),
    *(QuantizeCase("BFLOAT16", format, 0) for format in ("mxfp8e4m3", "mxfp4", "float8e4m3fn_1x128")),
    QuantizeCase("BFLOAT16", "mxfp8e4m3", transpose=True),
)


class CompiledQuantize(TorchTo):
    """torch.compile of the usual code for float8 with FLOAT scales."""

    name = "torch.compile"
    #: Formats, and what it needs to know of each.
    formats: dict[str, Any] = {"float8e4m3fn_1x128": 128, "float8e4m3fn_tensor": 0}  # noqa: RUF012 (a constant)

    def prepare_quantize(self, case: QuantizeCase, data: Any) -> Callable[[], object]:
        torch, x, block = self.torch, self.matrix(case, data), self.formats[case.format]

        def quantize(x: Any) -> Any:
            wide = (x.view(-1, block) if block else x).float()
            amax = wide.abs().amax(-1, keepdim=True) if block else wide.abs().amax()
            scale = amax / 448
            return (wide / scale).to(torch.float8_e4m3fn), scale

        compiled = torch.compile(quantize)
        return lambda: compiled(x)

    def matrix(self, case: QuantizeCase, data: Any) -> Any:
        return self.flat(data, dtype(case.src)).view(-1, COLUMNS)


class TorchAo(CompiledQuantize):
    """torchao's MX formats, compiled."""

    name = "torchao to_mx"
    formats = {"mxfp8e4m3": "float8_e4m3fn", "mxfp4": "float4_e2m1fn_x2"}  # noqa: RUF012 (a constant)

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        from torchao.prototype.mx_formats.mx_tensor import to_mx

        self.to_mx = self.torch.compile(to_mx, fullgraph=True)

    def prepare_quantize(self, case: QuantizeCase, data: Any) -> Callable[[], object]:
        kind, x = getattr(self.torch, self.formats[case.format]), self.matrix(case, data)
        return lambda: self.to_mx(x, kind, 32)


class TransformerEngineQuantize(CompiledQuantize):
    """TransformerEngine's quantizers, rows only."""

    name = "TransformerEngine"
    formats = {"mxfp8e4m3": None}  # noqa: RUF012 (a constant)

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        import transformer_engine.pytorch  # noqa: F401 (loads the library)
        import transformer_engine_torch as engine
        from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer

        self.quantizer = MXFP8Quantizer(engine.DType.kFloat8E4M3, rowwise=True, columnwise=False)

    def prepare_quantize(self, case: QuantizeCase, data: Any) -> Callable[[], object]:
        x = self.matrix(case, data)
        return lambda: self.quantizer(x)


def rivals(machine: Machine) -> Sequence[Any]:
    return available([CompiledQuantize, TorchAo, TransformerEngineQuantize], machine)


def measure_case(
    machine: Machine, case: QuantizeCase, rivals: Sequence[Any], rows: int = ROWS, columns: int = COLUMNS
) -> list[Line]:
    data, drawn = filled(machine, case, rows, columns)
    x = data.view(dtype(case.src).numpy).reshape(rows, columns)
    moved = data.nbytes + sum(q.nbytes for q in results_of(case(x)))
    # So that a copy moves as many bytes.
    half = moved // 32 * 16
    target = machine.empty(half)
    calls: dict[str, Call | Callable[[], Call]] = {
        OURS: Call(lambda: case(x), lambda result: difference(case(x[: len(drawn)]), case(drawn)))
    }
    if case.transpose == "both":
        one, other = (replace(case, transpose=transpose) for transpose in (False, True))
        calls["gpucast, two calls"] = Call(lambda: (one(x), other(x)))
    copies = machine.copy_kernels()
    for name, copy in copies.items():
        calls[name] = Call(lambda copy=copy: copy(target, data[:half]))  # type: ignore[misc]
    for rival in rivals:
        # Rivals are measured along rows only.
        if (case.axis, case.transpose) == (-1, False) and case.format in rival.formats:
            calls[rival.name] = lambda rival=rival: Call(rival.prepare_quantize(case, data))  # type: ignore[misc]
    lines = measure_calls(machine, str(case), calls, moved, [*copies])
    if case.reads > 1 and "share" in lines[0]:
        # The best possible for such a format is a copy of the bytes that have to be moved.
        lines[0] |= {"reads": case.reads, "share_of_its_copy": lines[0]["share"] * (moved + data.nbytes) / moved}
    return lines


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
