# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of a kernel: a rule and a shape in, one string without includes out.

The text is the files of ``kernels/`` (the prelude, the same for every kernel) and some twenty lines: the constants of
the two types, and the kernel's name and options. It is a pure function of the rule and the shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from gpucast.dtypes import DType
from gpucast.rule import Rule, resolve

Shape = Literal["contiguous", "strided"]

#: The order in which each file finds what it needs above it.
FILES = (
    "number.cuh",
    "to_bool.cuh",
    "to_int.cuh",
    "to_float.cuh",
    "to_e8m0.cuh",
    "layout.cuh",
    "cast.cu",
)

THREADS = 256
#: Bytes of one vector access.
VECTOR = 16

#: A result of 2^38 bytes, more than any GPU has, holds at most 2^40 elements: so many lengths of two or more.
MAX_DIMS = 40

_FAMILIES = {"bool": "BoolFamily", "int": "IntFamily", "float": "FloatFamily", "e8m0": "E8M0Family"}


@dataclass(frozen=True)
class KernelSource:
    """The text of one kernel, and what a launch of it needs.

    The arguments, in order: ``const void* src``, ``uint32 src_bit`` (0 to 7: where in the first byte a packed source
    begins), ``void* dst``, ``int64 n`` (elements), and for the strided shape a `gpucast.strides.Dims` by value.
    """

    #: The kernel's name, also that of its function (``extern "C"``).
    name: str
    rule: Rule
    shape: Shape
    #: True where a source below one byte comes one element per byte.
    unpacked: bool
    prelude: str
    #: The structs of the two types, by C++ name.
    rows: tuple[tuple[str, str], ...]
    #: The line that makes the kernel.
    kernel: str
    #: Elements of one thread, and threads of one block.
    elements: int
    threads: int

    @property
    def text(self) -> str:
        return join(self.prelude, dict(self.rows), [self.kernel])

    def blocks(self, n: int) -> int:
        """Blocks to launch for n elements (0 for none)."""
        if n == 0:
            return 0
        # In the contiguous shape the first tile may begin up to one tile less one element before the array.
        ahead = self.elements - 1 if self.shape == "contiguous" else 0
        return -(-(n + ahead) // (self.elements * self.threads))


def join(prelude: str, rows: dict[str, str], kernels: list[str]) -> str:
    """One translation unit of several kernels with the same prelude."""
    types = "".join(rows.values())
    return f"{prelude}\nnamespace gpucast {{\n{types}}}  // namespace gpucast\n{''.join(kernels)}"


def kernel_source(rule: Rule, shape: Shape = "contiguous", *, unpacked: bool = False) -> KernelSource:
    """The kernel that casts as `rule` says.

    `shape`: "contiguous" takes two contiguous arrays at any byte address; "strided" takes any strides on a side of
    whole bytes, while a packed side is the row-major stream. `unpacked`: a source below one byte comes one element per
    byte, as in ml_dtypes arrays.

    ValueError for a rule from or to STRING, which only the host casts, and for an unknown shape.
    """
    src, dst = rule.src, rule.dst
    if "string" in (src.family, dst.family):
        raise ValueError(f"kernel_source: {src.name} to {dst.name} has no kernel; STRING is cast on the host")
    if shape not in ("contiguous", "strided"):
        raise ValueError(f"kernel_source: shape={shape!r} is not a kernel shape; expected 'contiguous' or 'strided'")
    unpacked = unpacked and src.packed
    src_bits = 8 if unpacked else src.bits
    name = kernel_name(rule, shape, unpacked)
    types = f"{name}, {src.name}, {dst.name}, {src_bits}"
    if shape == "contiguous":
        elements = tile_elements(src_bits, dst.bits)
        kernel = f"GPUCAST_CONTIGUOUS({types}, {elements}, {THREADS}, {options(rule)})\n"
    else:
        elements = _unit(dst.bits)
        kernel = f"GPUCAST_STRIDED({types}, {MAX_DIMS}, {THREADS}, {options(rule)})\n"
    return KernelSource(name, rule, shape, unpacked, prelude(), rows(rule), kernel, elements, THREADS)


def options(rule: Rule) -> str:
    """The arguments of the template ``gpucast::Rule``."""
    return ", ".join(
        (
            f"gpucast::Overflow::{rule.overflow}",
            "true" if rule.infinity_is_nan else "false",
            f"gpucast::Rounding::{rule.rounding}",
            f"gpucast::RoundMode::{rule.round_mode}",
        )
    )


def rows(rule: Rule) -> tuple[tuple[str, str], ...]:
    """The structs of the two types, by C++ name."""
    return tuple((row.name, _row(row)) for row in dict.fromkeys((rule.src, rule.dst)))


def tile_elements(src_bits: int, dst_bits: int) -> int:
    """Elements of a tile: one vector of the wider side, but whole bytes (6 bits: three whole words) of both."""
    widest = VECTOR * 8 // max(src_bits, dst_bits)
    return max(1 << (widest.bit_length() - 1), *(16 if bits == 6 else _unit(bits) for bits in (src_bits, dst_bits)))


def _unit(bits: int) -> int:
    """The fewest elements that fill whole bytes together."""
    return 8 // math.gcd(bits, 8)


@lru_cache
def prelude() -> str:
    """The text of the files in ``kernels/``, from the installed package or from the checkout."""
    here = Path(__file__).parent
    for folder in (here / "kernels", here.parent / "kernels"):
        if (folder / FILES[-1]).is_file():
            return "\n".join((folder / name).read_text(encoding="utf-8") for name in FILES)
    raise FileNotFoundError(f"gpucast: the kernels are missing from {here}; install gpucast again")


def kernel_name(rule: Rule, shape: Shape = "contiguous", unpacked: bool = False) -> str:
    """`gpucast_float32_to_float8e4m3fn`, then what is not the default."""
    default = resolve(rule.src, rule.dst)
    parts = ["gpucast", rule.src.numpy_name.replace("_", ""), "to", rule.dst.numpy_name.replace("_", "")]
    for chosen, usual in (
        (rule.overflow, default.overflow),
        (rule.rounding, default.rounding),
        (rule.round_mode, default.round_mode),
    ):
        if chosen != usual:
            parts.append(chosen)
    parts += ["infinity_is_nan"] * rule.infinity_is_nan + ["unpacked"] * unpacked + ["strided"] * (shape == "strided")
    return "_".join(parts)


def _row(row: DType) -> str:
    """The row of the dtype table as a struct of constants. Enumerators, because constants of class scope would stay in
    the compiled module as variables."""
    lines = [
        f"typedef {_FAMILIES[row.family]} family;",
        f"enum : u32 {{ bits = {row.bits} }};",
        f"enum : u64 {{ mask = {row.code_mask:#x}, sign_code = {row.sign_code:#x}, max_code = {row.max_code:#x} }};",
    ]
    if row.is_float:
        lines += [
            f"enum : int {{ mantissa_bits = {row.mantissa_bits}, bias = {row.bias} }};",
            f"enum : bool {{ has_inf = {row.has_inf:d}, has_nan = {row.has_nan:d} }};",
            f"enum : bool {{ nan_is_signed = {row.nan_is_signed:d}, has_negative_zero = {row.has_negative_zero:d} }};",
        ]
    if row.has_nan:
        lines.append(f"enum : u64 {{ nan_code = {row.nan_code:#x} }};")
    if row.has_inf:
        lines.append(f"enum : u64 {{ inf_code = {row.inf_code:#x} }};")
    return f"struct {row.name} {{\n" + "".join(f"    {line}\n" for line in lines) + "};\n"
