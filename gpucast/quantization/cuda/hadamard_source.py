# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of the kernels that transform runs of numbers, and quantize them.

`kernels/hadamard.cu` has a function for each kind. This module writes its arguments and the structs of formats.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.kernel.cast_kernel import THREADS, options
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import RANDOM
from gpucast.kernel.kernel import Kernel, Part, array_and
from gpucast.quantization.cuda.source import PARTS, block_of, boolean, columns_of, format_struct
from gpucast.quantization.formats import LENGTHS, Format, Hadamard
from gpucast.quantization.scale_orders import ScaleLayout

#: "rows" quantizes along rows, "tiles" along rows, down columns to the transposed result, or both in one read. "top"
#: finds the largest magnitude of the transformed numbers, "transform" writes them.
HadamardKind = Literal["rows", "tiles", "top", "transform"]

_FLOAT, _DOUBLE, _BOTH = dtype("FLOAT"), dtype("DOUBLE"), "FLOAT, DOUBLE"
_SMALLEST_TILE, _SHARED_BYTES = 64, 48 << 10
#: `part_size` and `part_threads` of kernels/transform.cuh.
PART, PART_THREADS = 16, 256
#: The compute capability from which blocks stay, as `GPUCAST_HADAMARD_IN_TURN` in kernels/hadamard.cu has it.
_STAYS_FROM = 80


#: One result, with a global scale of its own; zeros for parts that do not exist.
HADAMARD_RESULT = Fields(
    "HadamardResult",
    (
        ("data", "u8*"),
        ("scales", "u8*"),
        ("zero_points", "u8*"),
        ("global_scale", "const float*"),
        # The rows of all its matrices.
        ("rows", "i64"),
    ),
)
#: What a kernel is given.
HADAMARD = Fields(
    "HadamardArguments",
    (
        ("same", HADAMARD_RESULT),
        ("swapped", HADAMARD_RESULT),
        # As in `QUANTIZE`, of one block.
        ("stats", "u8*"),
        ("random", RANDOM),
        # How many runs there are, and the distance in elements of the numbers of one.
        ("runs", "i64"),
        ("inner", "i64"),
        # The size of one matrix of the array, in elements and in tiles.
        ("rows", "i64"),
        ("columns", "i64"),
        ("tiles_down", "u32"),
        ("tiles_across", "u32"),
        # The sign bit of each number of a run, set where its sign is -1.
        ("signs", "u32", LENGTHS[-1]),
    ),
)
_PARTS: tuple[Part, ...] = (*PARTS, HADAMARD_RESULT, HADAMARD, "two_scales.cuh", "transform.cuh", "hadamard.cu")


class HadamardTile(NamedTuple):
    """The longest run or block of the plain and of the transposed result; 0 for a result that is not requested."""

    same: int
    swapped: int

    @classmethod
    def of(cls, format: Format, length: int, plain: bool, turned: bool, turned_length: int) -> HadamardTile:
        block = block_of(format)
        return cls(max(length, block) * plain, max(turned_length, block) * turned)

    @property
    def side(self) -> int:
        """The rows and the columns of a tile."""
        return max(_SMALLEST_TILE, *self)

    def fits(self, src: DType) -> bool:
        """Whether a tile fits in shared memory."""
        return self.side * (self.side * src.bits // 8 + 1) <= _SHARED_BYTES


@lru_cache(maxsize=1024)
def hadamard_kernel(
    rule: CastRule,
    kind: HadamardKind,
    length: int = 0,
    format: Format | None = None,
    stochastic: bool = False,
    *,
    inverse: bool = False,
    strided: bool = False,
    plain: bool = True,
    turned: bool = False,
    turned_length: int = 0,
    row_scaled: bool = False,
    layout: ScaleLayout = "linear",
) -> Kernel:
    """A kernel that transforms, quantizes, or both.

    `rule`: from the source to the element type; for "transform" to the result's type.
    `length`: of a run of the transform; 0 for none. For "tiles" that of the plain result.
    `format`: None for "transform", which knows no format.
    `strided`: whether the numbers of a run are not adjacent, or not aligned for vectors.
    `plain`, `turned`, `turned_length`: for "tiles", which results are wanted, and the length of a run of the transposed
    one.
    `row_scaled`: for "rows", whether each row has a global scale of its own.
    `layout`: the order in which scales are written.
    """
    src, dtypes = rule.src, [rule.src, _FLOAT, _DOUBLE]
    name = _name(
        rule, kind, length, format, {"plain": plain, "turned": turned}, turned_length,
        {"inverse": inverse, "strided": strided, "stochastic": stochastic, "row_scaled": row_scaled}, layout,
    )  # fmt: skip
    head, scales = "", "OneScale"
    if format is not None:
        head += format_struct(format, stochastic, f"{name}_format", row_scaled=row_scaled, layout=layout)
        dtypes += [format.element, format.scale]
        if format.rule == "4over6":
            head += format_struct(format, False, f"{name}_six")
            head += format_struct(format, False, f"{name}_four", divisor=4.0)
            scales = f"TwoScales<{name}_six, {name}_four>"
    of_format = f"{name}_format, {scales}, {src.name}, {_BOTH}"
    if kind == "tiles":
        assert format is not None
        tile = HadamardTile.of(format, length, plain, turned, turned_length)
        made = _in_tiles(name, rule, format, of_format, tile, (length, turned_length), stochastic)
    elif kind == "rows":
        made = _in_rows(name, src, format, of_format, length, stochastic)
    elif kind == "top":
        to = f"ToGlobalScale<{name}_format, Value<FLOAT, {_BOTH}>, {_BOTH}>{{dst}}"
        made = _Made(f"GPUCAST_HADAMARD_TOP({name}, {src.name}, {length}, {boolean(strided)}, {to})\n", 1)
    else:
        dtypes.append(rule.dst)
        of_result, flags = f"CastRule<{options(resolve(_FLOAT, rule.dst))}>", f"{boolean(inverse)}, {boolean(strided)}"
        numbers = f"{src.name}, {rule.dst.name}, {of_result}, {_BOTH}, {length}, {flags}"
        made = _Made(f"GPUCAST_HADAMARD_TRANSFORM({name}, {numbers})\n", PART)
    return Kernel(
        name, _PARTS, tuple(dtypes), head + made.lines, made.threads, array_and(HADAMARD), made.elements,
        turn=made.turn, stays_from=made.stays_from,
    )  # fmt: skip


class _Made(NamedTuple):
    """The last lines of a kernel, and fields of it."""

    lines: str
    elements: int
    threads: int = PART_THREADS
    turn: int = 0
    stays_from: int | None = None


def _in_tiles(
    name: str,
    rule: CastRule,
    format: Format,
    of_format: str,
    tile: HadamardTile,
    lengths: tuple[int, int],
    stochastic: bool,
) -> _Made:
    plain, turned, (length, turned_length) = tile.same > 0, tile.swapped > 0, lengths
    block = block_of(format)
    sizes = {
        "rows": tile.side, "columns": tile.side, "threads": PART_THREADS, "same": int(plain), "same_run": length,
        "swapped": int(turned), "swapped_run": turned_length,
    }  # fmt: skip
    listed = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    lines = f"namespace gpucast {{\nstruct {name}_tiles {{\n    enum : u32 {{ {listed} }};\n}};\n}}\n"
    # The compiler chooses, but where it would have registers spill: for two scales of a transposed result alone,
    # for codes of 2 bits of which the plain ones alone are of runs, shorter than their blocks, and for random words
    # beside transposed runs of 128.
    resident: int | str = 0
    if format.rule == "4over6" and not plain and not stochastic:
        resident = "(GPUCAST_ARCH < 1000 ? 2 : 0)"
    elif rule.dst.bits == 2 and plain and turned and 64 <= length < block and not turned_length:
        resident = "(GPUCAST_ARCH < 1000 ? 0 : 3)"
    elif stochastic and turned_length == 128:
        resident = "(GPUCAST_ARCH < 1000 ? 0 : 2)"
    lines += f"GPUCAST_HADAMARD_TILES({name}, {rule.src.name}, {PART_THREADS}, {resident}, {of_format}, {block})\n"
    return _Made(lines, tile.side**2 // PART_THREADS)


def _in_rows(name: str, src: DType, format: Format | None, of_format: str, length: int, stochastic: bool) -> _Made:
    stays = src.bits <= 16 and not stochastic
    numbers = f"{of_format}, {length}, {block_of(format)}"
    # Two scales to choose from, random words, quotients of DOUBLEs, and sums with other lanes where blocks stay take
    # more registers.
    resident = 8 - (stays and length > PART)
    if stochastic or src.bits == 64:
        resident = 4
    elif format is not None and format.rule == "4over6":
        resident = 6 - (length > 0)
    if stays:
        line = f"GPUCAST_HADAMARD_IN_TURN({name}, {src.name}, {THREADS}, {resident}, {numbers})\n"
        return _Made(line, PART, THREADS, turn=PART, stays_from=_STAYS_FROM)
    call = f"quantize_fragments<{numbers}, {THREADS}>(src, n, given)"
    return _Made(f"GPUCAST_HADAMARD({name}, {THREADS}, {resident}, {call})\n", PART, THREADS)


def _name(
    rule: CastRule,
    kind: HadamardKind,
    length: int,
    format: Format | None,
    results: dict[str, bool],
    turned_length: int,
    flags: dict[str, bool],
    layout: ScaleLayout,
) -> str:
    parts = ["gpucast_hadamard" if length or turned_length else "gpucast_quantize", rule.src.numpy_name]
    parts += [rule.dst.numpy_name] if format is None else columns_of(format)
    parts += [kind, *[f"run{length}"] * bool(length)]
    if format is not None and kind != "top":
        parts.append(f"block{block_of(format)}")
    if kind == "tiles":
        parts += [name for name, wanted in results.items() if wanted]
        parts += [f"turned{turned_length}"] * bool(turned_length)
    parts += [name for name, flag in flags.items() if flag]
    return "_".join(parts + [layout] * (layout != "linear"))


def takes(format: Format) -> bool:
    """Whether a format has the blocks of the kinds "rows" and "tiles"."""
    return format.min_ndim == 1 and isinstance(format.block, tuple) and format.block[-1] in LENGTHS


class HadamardResult(NamedTuple):
    """The values of `HADAMARD_RESULT`."""

    data: int = 0
    scales: int = 0
    zero_points: int = 0
    global_scale: int = 0
    rows: int = 0


NO_RESULT = HadamardResult()


def hadamard_arguments(
    same: HadamardResult = NO_RESULT,
    swapped: HadamardResult = NO_RESULT,
    *,
    stats: int = 0,
    seed: int = 0,
    offset: int = 0,
    runs: int = 0,
    inner: int = 1,
    rows: int = 0,
    columns: int = 0,
    tiles: tuple[int, int] = (1, 1),
    transform: Hadamard | None = None,
) -> bytes:
    """The bytes of `HADAMARD`."""
    sizes, negative = (runs, inner, rows, columns), 0 if transform is None else transform.negative
    return HADAMARD.pack(*same, *swapped, stats, seed, offset, *sizes, *tiles, *_signs(negative))


@lru_cache(maxsize=64)
def _signs(negative: int) -> tuple[int, ...]:
    return tuple((negative >> i & 1) << 31 for i in range(LENGTHS[-1]))
