# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of the kernels whose threads hold whole runs of a Hadamard transform, and whole blocks of a format.

`kernels/hadamard.cu` has a function for each kind. This module writes its arguments and the structs of formats.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

from gpucast.codegen.cast_kernel import THREADS, KernelSource, kernel_file, options, structs
from gpucast.codegen.fused_kernel import fused_prelude
from gpucast.codegen.spec import KernelSpec
from gpucast.core.dtypes import dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.quantization.formats import LENGTHS, Format, Hadamard
from gpucast.quantization.gpu.source import FILES, boolean, columns_of, format_struct
from gpucast.quantization.scale_orders import ScaleLayout

#: "rows" quantizes along rows, "tiles" along rows, down columns to the transposed result, or both in one read. "top"
#: finds the largest magnitude of the transformed numbers, "transform" writes them.
HadamardKind = Literal["rows", "tiles", "top", "transform"]

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
_SMALLEST_TILE, _SHARED_BYTES = 64, 48 << 10


@dataclass(frozen=True)
class HadamardSpec(KernelSpec[KernelSource]):
    """A kernel that transforms, quantizes, or both."""

    #: From the source to the element type; for "transform" to the result's type.
    rule: CastRule
    kind: HadamardKind
    #: Of a run of the transform; 0 for none. For "tiles" that of the plain result.
    length: int = 0
    #: None for "top" and "transform", which know no format.
    format: Format | None = None
    stochastic: bool = False
    inverse: bool = False
    #: Whether the numbers of a run are not adjacent, or not aligned for vectors.
    strided: bool = False
    #: For "tiles": which results are wanted, and the length of a run of the transposed one.
    plain: bool = True
    turned: bool = False
    turned_length: int = 0
    #: For "rows": whether each row has a global scale of its own.
    row_scaled: bool = False
    #: The order in which scales are written.
    layout: ScaleLayout = "linear"

    @property
    def size(self) -> int:
        """The numbers that a thread holds for the plain result."""
        return max(self.length, self._block)

    @property
    def turned_size(self) -> int:
        """Those for the transposed one."""
        return max(self.turned_length, self._block)

    @property
    def tile(self) -> int:
        """The rows and the columns of a tile."""
        return max(_SMALLEST_TILE, self.size * self.plain, self.turned_size * self.turned)

    @property
    def fits(self) -> bool:
        """Whether a tile fits in shared memory."""
        return self.tile * (self.tile * self.rule.src.bits // 8 + 1) <= _SHARED_BYTES

    @property
    def _block(self) -> int:
        if self.format is None:
            return 0
        assert isinstance(self.format.block, tuple)
        return self.format.block[-1]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        if self.kind != "tiles":
            return THREADS
        return self.tile**2 // max(self.size * self.plain, self.turned_size * self.turned)

    def source(self) -> KernelSource:
        src, name, types = self.rule.src, self._name, [self.rule.src, _FLOAT, _DOUBLE]
        more, scales, both = "", "OneScale", "FLOAT, DOUBLE"
        if self.format is not None:
            more += format_struct(
                self.format, self.stochastic, f"{name}_format", row_scaled=self.row_scaled, layout=self.layout
            )
            types += [self.format.element, self.format.scale]
            if self.format.rule == "4over6":
                more += format_struct(self.format, False, f"{name}_six")
                more += format_struct(self.format, False, f"{name}_four", divisor=4.0)
                scales = f"TwoScales<{name}_six, {name}_four>"
        of_format = f"{name}_format, {scales}, {src.name}, {both}"
        if self.kind == "tiles":
            more += f"namespace gpucast {{\nstruct {name}_tiles {{\n    {self._tile_sizes()}\n}};\n}}\n"
            kernel = f"GPUCAST_HADAMARD_TILES({name}, {src.name}, {self.threads}, {of_format}, {self._block})\n"
            elements = self.tile**2 // self.threads
        elif self.kind == "rows":
            sizes = f"{self.length}, {self.size}, {self._block}, {THREADS}"
            kernel = f"GPUCAST_HADAMARD({name}, {THREADS}, quantize_fragments<{of_format}, {sizes}>(src, n, given))\n"
            elements = self.size
        elif self.kind == "top":
            sizes = f"{src.name}, {both}, {self.length}, {boolean(self.strided)}, {THREADS}"
            kernel = f"GPUCAST_HADAMARD({name}, {THREADS}, find_transformed<{sizes}>(src, n, given))\n"
            elements = 1
        else:
            types.append(self.rule.dst)
            rule = f"CastRule<{options(resolve(_FLOAT, self.rule.dst))}>"
            flags = f"{self.length}, {boolean(self.inverse)}, {boolean(self.strided)}, {THREADS}"
            call = f"transform_array<{src.name}, {self.rule.dst.name}, {rule}, {both}, {flags}>(src, dst, n, given)"
            kernel = f"GPUCAST_HADAMARD({name}, {THREADS}, {call})\n"
            elements = self.length
        return KernelSource(
            name=name,
            rule=self.rule,
            shape="contiguous",
            unpacked=False,
            prelude="\n".join([fused_prelude(), *map(kernel_file, (*FILES, "hadamard.cu"))]),
            structs=structs(*types),
            kernel=more + kernel,
            tile=1,
            elements=elements,
            threads=self.threads,
            more="gpucast::HadamardArguments",
        )

    def _tile_sizes(self) -> str:
        sizes = {
            "rows": self.tile, "columns": self.tile, "threads": self.threads, "same": self.size * self.plain,
            "same_run": self.length, "swapped": self.turned_size * self.turned, "swapped_run": self.turned_length,
        }  # fmt: skip
        return f"enum : u32 {{ {', '.join(f'{name} = {size}' for name, size in sizes.items())} }};"

    @property
    def _name(self) -> str:
        parts = ["gpucast_hadamard" if self.length or self.turned_length else "gpucast_quantize"]
        parts += [self.rule.src.numpy_name]
        parts += [self.rule.dst.numpy_name] if self.format is None else columns_of(self.format)
        parts += [self.kind, *[f"run{self.length}"] * bool(self.length)]
        if self.format is not None:
            parts.append(f"block{self._block}")
        if self.kind == "tiles":
            parts += ["plain"] * self.plain + ["turned"] * self.turned
            parts += [f"turned{self.turned_length}"] * bool(self.turned_length)
        flags = {name: getattr(self, name) for name in ("inverse", "strided", "stochastic", "row_scaled")}
        parts += [name for name, flag in flags.items() if flag]
        return "_".join(parts + [self.layout] * (self.layout != "linear"))


def takes(format: Format) -> bool:
    """Whether a thread can hold whole blocks of a format."""
    return format.min_ndim == 1 and isinstance(format.block, tuple) and format.block[-1] in LENGTHS


@dataclass(frozen=True)
class HadamardResult:
    """The addresses of a result's parts on the device; 0 for parts that do not exist. The rows of all its matrices."""

    data: int = 0
    scales: int = 0
    zero_points: int = 0
    global_scale: int = 0
    rows: int = 0


@dataclass(frozen=True)
class HadamardArguments:
    """The last argument of a kernel: ``struct HadamardArguments`` of kernels/hadamard.cu."""

    same: HadamardResult = field(default_factory=HadamardResult)
    swapped: HadamardResult = field(default_factory=HadamardResult)
    stats: int = 0
    seed: int = 0
    offset: int = 0
    runs: int = 0
    inner: int = 1
    rows: int = 0
    columns: int = 0
    tiles: tuple[int, int] = (1, 1)
    transform: Hadamard | None = None

    def to_bytes(self) -> bytes:
        results = (place for result in (self.same, self.swapped) for place in vars(result).values())
        sizes = self.runs, self.inner, self.rows, self.columns
        negative = 0 if self.transform is None else self.transform.negative
        signs = ((negative >> i & 1) << 31 for i in range(LENGTHS[-1]))
        return struct.pack("<10Q3Q4q2I128I", *results, self.stats, self.seed, self.offset, *sizes, *self.tiles, *signs)
