# SPDX-License-Identifier: Apache-2.0
"""Scaled and block formats, beside copies of as many bytes and other libraries.

The codes and scales of the first rows are compared with the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

import gpucast
from bench.cases.buffers import repeat
from bench.cases.case import Call, Case
from bench.cases.check import Check
from bench.cases.contenders import UNROLLS, TorchTo, copies, copy_name
from bench.timing.machine import Copy, Machine
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.quantization import FORMATS

ROWS, COLUMNS = 1 << 14, 1 << 13
#: The number of random rows, which are compared; the memory is filled with copies of them.
DRAWN = 128
OURS = "gpucast.quantize"


@dataclass(frozen=True)
class Quantizing:
    """A call of `gpucast.quantize` that is measured."""

    src: str
    format: str
    axis: int = -1
    transpose: bool | Literal["both"] = False
    rows: int = ROWS
    columns: int = COLUMNS

    def __str__(self) -> str:
        direction = {False: "", True: ", transposed", "both": ", both ways"}[self.transpose]
        twice = ", x read twice" if self.reads > 1 else ""
        return f"{self.src} to {self.format}{direction}{f', axis {self.axis}' if self.axis != -1 else ''}{twice}"

    def __call__(self, x: Any) -> Any:
        return gpucast.quantize(x, self.format, axis=self.axis, transpose=self.transpose)

    @property
    def reads(self) -> int:
        """How often x has to be read: twice if a scale covers more elements than a block of threads holds, or if a
        global scale has to be computed before the others."""
        format = FORMATS[self.format]
        return 2 if format.global_scale or isinstance(format.block, str) else 1

    def case(self) -> Case:
        return Case("quantize", f"quantize: {self}", self.ways, tuple(copy_name(unroll) for unroll in UNROLLS))

    def ways(self, machine: Machine) -> tuple[float, Mapping[str, Callable[[], Call]]]:
        """Quantizing, copies, and rivals, which are measured along rows only."""
        data, drawn = self.filled(machine)
        x = data.view(dtype(self.src).numpy).reshape(self.rows, self.columns)
        moved = data.nbytes + sum(q.nbytes for q in results_of(self(x)))

        def ours() -> Call:
            return Call(lambda i: self(x), check=lambda result: difference(self(x[: len(drawn)]), self(drawn)))

        ways: dict[str, Callable[[], Call]] = {OURS: ours}
        if self.transpose == "both":
            one, other = (replace(self, transpose=transpose) for transpose in (False, True))
            ways["gpucast, two calls"] = lambda: Call(lambda i: (one(x), other(x)))
        for unroll in UNROLLS:
            copy = machine.copy_kernel(unroll, unroll)
            ways[copy_name(unroll)] = _copying(machine, copy, moved)
            if self.reads > 1:
                # The best possible for such a format.
                ways[f"{copy_name(unroll)}, of both reads"] = _copying(machine, copy, moved + data.nbytes)
        if (self.axis, self.transpose) == (-1, False):
            for name, (formats, prepare) in RIVALS.items():
                if self.format in formats:
                    ways[name] = lambda prepare=prepare: Call(prepare(machine, self, data))  # type: ignore[misc]
        return moved, ways

    def filled(self, machine: Machine) -> tuple[Any, np.ndarray[Any, Any]]:
        """The bytes of an array on the machine, and the rows that it repeats."""
        src = dtype(self.src)
        random = np.random.default_rng(0).standard_normal((min(DRAWN, self.rows), self.columns)).astype(np.float32)
        drawn = gpucast.cast(random, src)
        data = machine.empty(self.rows * self.columns * src.bits // 8)
        repeat(machine, data, np.ascontiguousarray(drawn).view(np.uint8).reshape(-1))
        return data, drawn


def cases() -> Iterator[Case]:
    formats = "mxfp8e4m3 mxfp4 nvfp4 float8e4m3fn_1x128 float8e4m3fn_128x128 float8e4m3fn_tensor int8_axis int4_128"
    names = formats.split()
    for transpose, chosen in ((False, names), ("both", names[:-2])):
        for format in chosen:
            for src in ("BFLOAT16", "FLOAT"):
                yield Quantizing(src, format, transpose=transpose).case()  # type: ignore[arg-type]
    for format in ("mxfp8e4m3", "mxfp4", "float8e4m3fn_1x128"):
        yield Quantizing("BFLOAT16", format, 0).case()
    yield Quantizing("BFLOAT16", "mxfp8e4m3", transpose=True).case()


def _copying(machine: Machine, copy: Copy, moved: int) -> Callable[[], Call]:
    return lambda: Call(copies(machine, 1, moved / 2, moved / 2, copy))


def results_of(made: Any) -> tuple[Any, ...]:
    """One `Quantized`, or both."""
    return made if isinstance(made, tuple) else (made,)


def difference(got: Any, wanted: Any) -> Check:
    """How results differ from the host's."""
    count, wrong = 0, []
    for ours, theirs in zip(results_of(got), results_of(wanted), strict=True):
        for name, part in ours.get().parts().items():
            one, other = (x.data if isinstance(x, PackedArray) else x for x in (part, theirs.parts()[name]))
            count += 1
            if np.asarray(one).tobytes() != np.asarray(other).tobytes():
                wrong.append(name)
    return Check(count, len(wrong), f"{' and '.join(wrong)} are not the host's" if wrong else "")


# ---- rivals ----

Prepare = Callable[[Machine, Quantizing, Any], Callable[[int], object]]


def _matrix(machine: Machine, case: Quantizing, data: Any) -> tuple[Any, Any]:
    """PyTorch, and its view of the array."""
    of = TorchTo(machine)
    return of.torch, of.flat(data, dtype(case.src)).view(-1, case.columns)


def _compiled(machine: Machine, case: Quantizing, data: Any) -> Callable[[int], object]:
    """torch.compile of the usual code for float8 with FLOAT scales."""
    torch, x = _matrix(machine, case, data)
    block = 128 if case.format == "float8e4m3fn_1x128" else 0

    def quantize(x: Any) -> Any:
        wide = (x.view(-1, block) if block else x).float()
        amax = wide.abs().amax(-1, keepdim=True) if block else wide.abs().amax()
        scale = amax / 448
        return (wide / scale).to(torch.float8_e4m3fn), scale

    compiled = torch.compile(quantize)
    return lambda i: compiled(x)


def _torchao(machine: Machine, case: Quantizing, data: Any) -> Callable[[int], object]:
    """torchao's MX formats, compiled."""
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    torch, x = _matrix(machine, case, data)
    kind = torch.float8_e4m3fn if case.format == "mxfp8e4m3" else torch.float4_e2m1fn_x2
    compiled = torch.compile(to_mx, fullgraph=True)
    return lambda i: compiled(x, kind, 32)


def _transformer_engine(machine: Machine, case: Quantizing, data: Any) -> Callable[[int], object]:
    """TransformerEngine's quantizer, rows only."""
    import transformer_engine.pytorch  # noqa: F401 (loads the library)
    import transformer_engine_torch as engine
    from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer

    _, x = _matrix(machine, case, data)
    quantizer = MXFP8Quantizer(engine.DType.kFloat8E4M3, rowwise=True, columnwise=False)
    return lambda i: quantizer(x)


#: Name -> the formats that it has, and the function that prepares its call.
RIVALS: dict[str, tuple[tuple[str, ...], Prepare]] = {
    "torch.compile": (("float8e4m3fn_1x128", "float8e4m3fn_tensor"), _compiled),
    "torchao to_mx": (("mxfp8e4m3", "mxfp4"), _torchao),
    "TransformerEngine": (("mxfp8e4m3",), _transformer_engine),
}
