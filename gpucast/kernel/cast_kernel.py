# SPDX-License-Identifier: Apache-2.0
"""The kernels that cast one array: from a rule and a shape to a `Kernel`. Pure functions."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, resolve
from gpucast.kernel.kernel import ARRAY, Kernel, Part, array_and
from gpucast.kernel.strides import DIMS, MAX_DIMS

Shape = Literal["contiguous", "strided", "transposed"]
SHAPES: tuple[Shape, ...] = ("contiguous", "strided", "transposed")

#: The files that every kernel needs, and the structs of their arguments.
PARTS: tuple[Part, ...] = (
    "number.cuh",
    "instructions.cuh",
    "float32.cuh",
    "to_bool.cuh",
    "to_int.cuh",
    "to_float.cuh",
    "to_e8m0.cuh",
    "element.cuh",
    "lanes.cuh",
    "layout.cuh",
    DIMS,
    "strided.cuh",
    "table.cuh",
    "bit_planes.cuh",
    "ways.cuh",
    "cast.cu",
)

THREADS = 128
#: Threads of a block with a table, which takes as long to fill as some tiles of many threads to cast.
TABLE_THREADS = 512
#: Bytes of one vector access, and of a line of the L2 cache.
VECTOR, _LINE = 16, 128

#: Bits, mantissa bits and bias of FLOAT8E4M3FN and FLOAT8E5M2, which instructions of newer GPUs know.
_FLOAT8 = ((8, 3, 7), (8, 2, 15))
#: The same of FLOAT4E2M1.
_FLOAT4 = (4, 1, 1)


@lru_cache(maxsize=1024)
def plain_kernel(rule: CastRule, shape: Shape = "contiguous", unpacked: bool = False) -> Kernel:
    """The kernel that casts one array as `rule` says, and does nothing else.

    `shape`: "contiguous" takes two contiguous arrays at any byte address; "strided" takes any strides on a side of
    whole bytes, while a packed side is the row-major stream; "transposed" takes the dimensions that
    `gpucast.kernel.strides.squares` returns. `unpacked`: a source below one byte has one element per byte, as in
    ml_dtypes arrays.

    ValueError for a rule from or to STRING, which only the host casts, and for an unknown shape.
    """
    src, dst = rule.src, rule.dst
    if "string" in (src.family, dst.family):
        raise ValueError(f"plain_kernel: {src.name} to {dst.name} has no kernel; STRING is cast on the host")
    if rule.rounding == STOCHASTIC:
        raise ValueError(f"plain_kernel: {src.name} to {dst.name} at random has only fused kernels")
    if shape not in SHAPES:
        raise ValueError(f"plain_kernel: shape={shape!r} is not a kernel shape; expected one of {', '.join(SHAPES)}")
    unpacked = unpacked and src.packed
    src_bits = 8 if unpacked else src.bits
    if shape == "transposed" and min(src_bits, dst.bits) < 8:
        raise ValueError(
            f"plain_kernel: {src.name} to {dst.name} has no transposed kernel; a packed side has no strides"
        )
    name = kernel_name(rule, shape, unpacked)
    head = f"{name}, {src.name}, {dst.name}"
    names = {f"{name}_rule": rule}
    types = [src, dst]
    entry = entries(rule, src_bits) if shape == "contiguous" else None
    threads = THREADS if entry is None else TABLE_THREADS
    if shape == "strided":
        tile = elements = strided_elements(src_bits, dst.bits)
        kernel = f"GPUCAST_STRIDED({head}, {src_bits}, {MAX_DIMS}, {elements}, {THREADS})\n"
    elif shape == "transposed":
        rows, columns = square_sides(src_bits, dst.bits)
        tile = elements = rows * columns // THREADS
        kernel = f"GPUCAST_TRANSPOSED({head}, {src_bits}, {MAX_DIMS}, {rows}, {columns}, {THREADS})\n"
    else:
        tile = tile_elements(src_bits, dst.bits)
        tiles = tiles_of_thread(src_bits, dst.bits, looks_up=entry is not None)
        elements, sizes = tile * tiles, f"{src_bits}, {tile}, {tiles}, {threads}"
        kernel = f"GPUCAST_CONTIGUOUS({head}, {sizes})\n"
        if entry is not None:
            look_up = f"GPUCAST_LOOKUP({head}, {entry.name}, {sizes})\n"
            kernel = choose(without_table(rule, src_bits), kernel, look_up)
            names[f"{name}_entry_rule"] = rule if entry is dst else resolve(src, entry)
            types.append(entry)
    kernel = "".join(_rule(*item) for item in names.items()) + kernel
    arguments, ahead = (ARRAY, tile - 1) if shape == "contiguous" else (array_and(DIMS.of(MAX_DIMS)), 0)
    return Kernel(name, PARTS, tuple(types), kernel, threads, arguments, elements, tile, ahead)


def entries(rule: CastRule, src_bits: int) -> DType | None:
    """The type of the codes in the table of a contiguous kernel; None for one that computes.

    Sources of 8 bits or fewer are looked up, unless the cast only truncates or sign-extends an integer, or the GPU has
    an instruction for it. For results of more than 16 bits the table holds FLOATs, which represent all such sources
    exactly, and the kernel converts these.
    """
    src, dst = rule.src, rule.dst
    if src_bits > 8 or (dst.family == "bool" and src.bits == 8) or (src_bits == 4 and dst.bits < 8):
        return None
    if src.family in ("bool", "int"):
        # Truncating or sign-extending a whole-byte integer is quicker without a table, and so are these words.
        wraps = dst.family == "int" and rule.overflow == "wrap"
        moves = wraps and (src_bits == 8 or src.bits == dst.bits or (src_bits, dst.bits) == (4, 8))
        halves = dst.is_float and dst.bits == 16 and src.family == "int" and src_bits == src.bits
        halves = halves and (src_bits, dst.mantissa_bits) in ((4, 7), (4, 10), (8, 10))
        return None if dst.bits > 16 or moves or halves else dst
    if dst.bits <= 16:
        return None if src is dst else dst
    # A table of FLOATs would hold an infinity where the rule saturates to the largest number.
    return None if rule.overflow == "saturate" and dst.is_float else dtype("FLOAT")


def without_table(rule: CastRule, src_bits: int) -> str:
    """The preprocessor's condition under which the table of `entries` is needless; "" for none."""
    src, dst = rule.src, rule.dst
    if src.is_float and src_bits == 6 and dst.bits < 8:
        return "GPUCAST_ARCH >= 1000"
    if rule.rounds_by_rule:
        return ""
    if _is_computed(rule):
        return "GPUCAST_ARCH >= 1000"
    known = src.is_float and src.has_negative_zero and (src.bits, src.mantissa_bits, src.bias) in _FLOAT8
    wide = dst.is_float and (dst.bits == 32 or (dst.bits == 16 and dst.mantissa_bits in (7, 10)))
    if known and wide:
        return "GPUCAST_FLOAT8" if not (src.has_inf and rule.overflow == "saturate") else ""
    tiny = src.is_float and (src.bits == 6 or (src.bits, src.mantissa_bits, src.bias) == _FLOAT4)
    return "GPUCAST_SPECIFIC" if (tiny and wide) or _is_shorter(rule, known) else ""


def _is_computed(rule: CastRule) -> bool:
    """Whether words of the source are cast by arithmetic where the GPU has less of memory's time for a look-up."""
    src, dst = rule.src, rule.dst
    if src.family == "bool":
        return dst.family in ("float", "e8m0") and dst.bits <= 8
    if (src.family, src.bits) == ("int", 4):
        return dst.family == "float" and dst.bits == 8 and dst.signed
    truncates = dst.family == "int" and rule.overflow == "wrap" and rule.rounding == "toward_zero"
    shifts = src.family == "e8m0" and dst.bits in (2, 4, 64)
    float8 = src.signed and (src.bits, src.mantissa_bits) in ((8, 2), (8, 3))
    return truncates and (shifts or (float8 and dst.bits < 8))


def _is_shorter(rule: CastRule, known: bool) -> bool:
    """Whether conversions of the variants `a` and `f` of sm_100 and later take less than a look-up does. `known`: the
    source is FLOAT8E4M3FN or FLOAT8E5M2."""
    src, dst = rule.src, rule.dst
    double = dst.bits == 64 and dst.is_float and rule.overflow != "saturate"
    # What an instruction rounds to: FLOAT16 and BFLOAT16, float8, FLOAT4E2M1.
    half = dst.bits == 16 and dst.is_float and rule.overflow == "infinity"
    float8 = (dst.bits, dst.mantissa_bits, dst.bias) in _FLOAT8 and dst.has_negative_zero
    float8 = float8 and rule.overflow == "saturate" and not rule.infinity_is_nan
    float4 = dst.is_float and (dst.bits, dst.mantissa_bits, dst.bias) == _FLOAT4
    power = dst.family == "e8m0" and rule.overflow == "saturate" and rule.round_mode != "nearest"
    if known:
        return double or power or float4 or (dst.family == "int" and dst.bits in (16, 32)) or (float8 and src.has_inf)
    if src.family in ("bool", "int"):
        if src.bits < 8:
            return float8 and src.bits == 4
        return half or float8 or power or (src.family == "int" and (float4 or dst.bits == 6))
    if src.family == "e8m0":
        return double or half or float4 or (dst.bits == 32 and dst.is_float)
    if float4:
        return src.signed and (src.bits, src.mantissa_bits) in ((6, 2), (6, 3), (8, 2), (8, 3))
    return src.bits == 4 and double


def choose(condition: str, text: str, other: str) -> str:
    """CUDA text that is `text` under a condition of the preprocessor, else `other`."""
    return f"#if {condition}\n{text}#else\n{other}#endif\n" if condition else other


def _rule(name: str, rule: CastRule) -> str:
    return f"namespace gpucast {{\ntypedef CastRule<{options(rule)}> {name};\n}}\n"


def options(rule: CastRule) -> str:
    """The arguments of the template ``gpucast::CastRule``."""
    return ", ".join(
        (
            f"gpucast::Overflow::{rule.overflow}",
            "true" if rule.infinity_is_nan else "false",
            f"gpucast::Rounding::{rule.rounding}",
            f"gpucast::RoundMode::{rule.round_mode}",
        )
    )


def tile_elements(src_bits: int, dst_bits: int) -> int:
    """Elements of a tile: one vector of the wider side, and whole bytes of both (of 6-bit types 3 whole words, but for
    64 bits: so many of them would be a line of the L1 cache for each thread)."""
    if sorted((src_bits, dst_bits)) == [6, 64]:
        return 4
    widest = VECTOR * 8 // max(src_bits, dst_bits)
    return max(1 << (widest.bit_length() - 1), *(16 if bits == 6 else _unit(bits) for bits in (src_bits, dst_bits)))


def tiles_of_thread(src_bits: int, dst_bits: int, *, looks_up: bool) -> int:
    """Tiles that a thread of the contiguous shape casts, all of them loaded before the first is cast.

    Two loads in flight are enough to keep memory busy. More tiles lower the instructions per element, as long as 32
    registers hold them.
    """
    if looks_up:
        return 8 if dst_bits in (2, 64) or (src_bits, dst_bits) == (6, 4) else 4
    if src_bits == dst_bits == 4:
        return 2  # Sixteen codes and four tiles are more than 32 registers hold.
    longest = tile_elements(src_bits, dst_bits) * src_bits // 8
    return 4 if longest <= VECTOR or src_bits + dst_bits <= 36 else 2


def strided_elements(src_bits: int, dst_bits: int) -> int:
    """Elements of a thread of the strided shape, a tile: few, because rows may be short, and enough to share the search
    for their place."""
    return 16 if 6 in (src_bits, dst_bits) or src_bits + dst_bits <= 24 else 8


def square_sides(src_bits: int, dst_bits: int) -> tuple[int, int]:
    """The tiles of a transposed kernel: their elements along the dense dimension of the source, and of the destination.
    That is 128 bytes or more on either side."""
    rows, columns = (max(_LINE * 8 // bits, 32) for bits in (src_bits, dst_bits))
    return rows, columns


def _unit(bits: int) -> int:
    """The fewest elements that fill whole bytes together."""
    return 8 // math.gcd(bits, 8)


def kernel_name(rule: CastRule, shape: Shape = "contiguous", unpacked: bool = False) -> str:
    """The name of a kernel: its rule's, and words for the shape and unpacked sources."""
    return "_".join([rule.function, *["unpacked"] * unpacked, *[shape] * (shape != "contiguous")])
