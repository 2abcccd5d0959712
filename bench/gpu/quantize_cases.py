# SPDX-License-Identifier: Apache-2.0
"""Scaled and block formats, beside copies of as many bytes and other libraries.

The codes and scales of the first rows are compared with the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
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
from gpucast.kernel.driver import driver
from gpucast.quantization import Quantized
from gpucast.quantization.formats import find

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
    #: The length of a run of the transform before it; 0 for none.
    hadamard: int = 0
    #: Whether a global scale is given.
    scaled: bool = False
    rows: int = ROWS
    columns: int = COLUMNS

    def __str__(self) -> str:
        direction = {False: "", True: ", transposed", "both": ", both ways"}[self.transpose]
        before = f", Hadamard {self.hadamard}" if self.hadamard else ""
        twice = ", x read twice" if self.reads > 1 else ", scale=" if self.scaled else ""
        axis = f", axis {self.axis}" if self.axis != -1 else ""
        return f"{self.src} to {self.format}{direction}{before}{axis}{twice}"

    def __call__(self, x: Any) -> Any:
        transform = self.hadamard or None
        return gpucast.quantize(
            x, self.format, axis=self.axis, transpose=self.transpose, hadamard=transform, scale=self.scale
        )

    @property
    def scale(self) -> float | None:
        """The given global scale: of numbers near 1, up to 6."""
        return 2.0**-8 if self.scaled else None

    @property
    def reads(self) -> int:
        """How often x has to be read: twice if a scale covers more elements than a block of threads holds, or if a
        global scale has to be computed before the others."""
        format = find(self.format, "bench")
        return 2 if not self.scaled and (format.global_scale or isinstance(format.block, str)) else 1

    def case(self) -> Case:
        return Case("quantize", f"quantize: {self}", self.ways, tuple(copy_name(unroll) for unroll in UNROLLS))

    def ways(self, machine: Machine) -> tuple[float, Mapping[str, Callable[[], Call]]]:
        """Quantizing, copies, and rivals, which are measured along rows only."""
        data, drawn = self.filled(machine)
        x = data.view(dtype(self.src).numpy).reshape(self.rows, self.columns)
        moved = data.nbytes + sum(part.nbytes for part in parts_of(self(x)))

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
        if (self.axis, self.transpose, self.hadamard) == (-1, False, 0):
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


@dataclass(frozen=True)
class Grouping(Quantizing):
    """A call of `gpucast.quantize_grouped`, for groups of as many rows."""

    groups: int = 8

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.groups} groups"

    def __call__(self, x: Any) -> Any:
        ends = _ends(len(x), self.groups, not isinstance(x, np.ndarray))
        return gpucast.quantize_grouped(x, ends, self.format, scale=self.scale)


@lru_cache(maxsize=8)
def _ends(rows: int, groups: int, on_device: bool) -> Any:
    ends = np.arange(1, groups + 1, dtype=np.int32) * (rows // groups)
    return driver().to_device(ends) if on_device else ends


@dataclass(frozen=True)
class Transforming(Quantizing):
    """A call of `gpucast.hadamard`. `format`: the type of the result."""

    def __str__(self) -> str:
        return f"{self.src} to {self.format}, Hadamard {self.hadamard} alone"

    @property
    def reads(self) -> int:
        return 1

    def __call__(self, x: Any) -> Any:
        return gpucast.hadamard(x, self.hadamard, to=self.format)


def training() -> Iterator[Quantizing]:
    """What training in 8 and 4 bits calls beside rows and both ways of the formats."""
    bf16 = "BFLOAT16"
    yield Quantizing(bf16, "mxfp8e4m3", transpose=True)
    yield Quantizing(bf16, "nvfp4", scaled=True)
    yield Quantizing(bf16, "nvfp4", transpose="both", scaled=True)
    yield Quantizing("FLOAT16", "nvfp4", transpose="both", scaled=True)
    yield Quantizing("FLOAT16", "mxfp8e4m3", transpose="both")
    yield Quantizing(bf16, "nvfp4", transpose="both", hadamard=16, scaled=True)
    for length in (16, 128):
        yield Quantizing(bf16, "nvfp4", hadamard=length, scaled=True)
        yield Transforming(bf16, bf16, hadamard=length)
    for transpose in (False, "both"):
        yield Quantizing(bf16, "nvfp4_4over6", transpose=transpose, scaled=True)
    yield Grouping(bf16, "mxfp8e4m3")
    yield Grouping(bf16, "nvfp4", scaled=True)


def cases() -> Iterator[Case]:
    yield from (one.case() for one in training())
    formats = "mxfp8e4m3 mxfp4 nvfp4 float8e4m3fn_1x128 float8e4m3fn_128x128 float8e4m3fn_tensor int8_axis int4_128"
    names = formats.split()
    for transpose, chosen in ((False, names), ("both", names[:-2])):
        for format in chosen:
            for src in ("BFLOAT16", "FLOAT"):
                yield Quantizing(src, format, transpose=transpose).case()  # type: ignore[arg-type]
    for format in ("mxfp8e4m3", "mxfp4", "float8e4m3fn_1x128"):
        yield Quantizing("BFLOAT16", format, 0).case()


def _copying(machine: Machine, copy: Copy, moved: int) -> Callable[[], Call]:
    return lambda: Call(copies(machine, 1, moved / 2, moved / 2, copy))


def parts_of(made: Any) -> Iterator[Any]:
    """The arrays of a `Quantized`, of several results, or of groups of rows."""
    if isinstance(made, (tuple, list)):
        for one in made:
            yield from parts_of(one)
    elif isinstance(made, Quantized):
        yield from parts_of(list(made.parts().values()))
    elif made is not None:
        yield made.data if isinstance(made, PackedArray) else made


def difference(got: Any, wanted: Any) -> Check:
    """How results differ from the host's."""
    pairs = [(_bits(one), _bits(other)) for one, other in zip(parts_of(got), parts_of(wanted), strict=True)]
    wrong = [number for number, (one, other) in enumerate(pairs) if one != other]
    return Check(len(pairs), len(wrong), f"arrays {wrong} of {len(pairs)} are not the host's" if wrong else "")


def _bits(x: Any) -> bytes:
    return (x if isinstance(x, np.ndarray) else driver().to_host(x.view(dtype(x.dtype).code_numpy))).tobytes()


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
