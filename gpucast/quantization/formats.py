# SPDX-License-Identifier: Apache-2.0
"""The table of quantization formats. A format is one row of data, as a dtype is.

Sources: OCP Microscaling Formats (MX) v1.0 (MXFP8, MXFP6, MXFP4); NVIDIA's description of NVFP4; the DeepSeek-V3 report
(float8 with FLOAT scales for 1x128 and 128x128 blocks); ONNX QuantizeLinear (integers, axes, zero points).
`gpucast.quantization.reference` defines the scale rules number by number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.errors import nearest
from gpucast.quantization.steps import Steps

__all__ = [
    "FORMATS", "LENGTHS", "ROW", "SOURCES", "Format", "Hadamard", "Parts", "ScaleRule", "find",
]  # fmt: skip

#: How the scale of a block comes from its largest magnitude: "amax" (divided by the largest element), "full_range" (by
#: half of what lies between the lowest and the largest integer), "no_clipping" (as "amax", but the lowest integer is
#: used for negative numbers), "floor" (the power of two of OCP MX), "up" (the next power of two above amax / the
#: largest element), "even" (as "floor", after amax is rounded to the bits of an element), "4over6" (as "amax", or by
#: which amax becomes 4 in place of 6, whichever has the smaller squared error).
ScaleRule = Literal["amax", "full_range", "no_clipping", "floor", "up", "even", "4over6"]
#: The length of a block that is a whole row, however long.
ROW = (1 << 31) - 1
#: Which elements share a scale: all ("tensor"), those of one index of the axis ("axis"), or blocks of these lengths,
#: the last one along the axis.
Block = Literal["tensor", "axis"] | tuple[int, ...]

_FLOAT, _BFLOAT16, _E8M0, _E4M3, _UE5M3 = map(dtype, ("FLOAT", "BFLOAT16", "FLOAT8E8M0", "FLOAT8E4M3FN", "FLOAT8UE5M3"))
#: The types of the arrays that can be quantized.
SOURCES = (dtype("FLOAT"), dtype("FLOAT16"), dtype("BFLOAT16"), dtype("DOUBLE"))
#: The first one belongs to the names in the table that have no ending.
_RULES: dict[DType, tuple[ScaleRule, ...]] = {
    _FLOAT: ("amax", "full_range", "no_clipping"),
    _BFLOAT16: ("amax", "full_range", "no_clipping"),
    _E4M3: ("amax", "4over6"),
    _UE5M3: ("amax",),
    _E8M0: ("floor", "up", "even"),
}


@dataclass(frozen=True)
class Format:
    """A format of quantization: the types of codes and scales, the blocks, and the rule for scales.

    ``Format("mine", "INT4", "FLOAT", (48,), "amax")`` defines another one. Types are anything that `gpucast.dtype`
    takes.

    TypeError or ValueError for columns that do not go together.
    """

    name: str
    #: The type of the codes: a float or integer type of at most 8 bits.
    element: DType
    #: The type of the scales: FLOAT, BFLOAT16, FLOAT8E4M3FN, FLOAT8UE5M3 or FLOAT8E8M0.
    scale: DType
    block: Block
    rule: ScaleRule
    #: True: integers have a zero point per scale (asymmetric). False: zero is code 0 (symmetric).
    zero_points: bool = False
    #: True: one FLOAT number multiplies all scales (the second level of NVFP4).
    global_scale: bool = False
    #: The FLOAT arithmetic of another library in place of exact quotients.
    steps: Steps | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"Format: name={self.name!r} must be text")
        for column in ("element", "scale"):
            object.__setattr__(self, column, dtype(getattr(self, column), caller=f"{self._caller}{column}="))
        element, scale = self.element, self.scale
        for flag in ("zero_points", "global_scale"):
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"{self._caller}{flag}={getattr(self, flag)!r} must be True or False")
        if element.family not in ("float", "int") or element.bits > 8:
            raise TypeError(f"{self._caller}element={element} must be a float or integer type of at most 8 bits")
        if scale not in _RULES:
            raise TypeError(f"{self._caller}scale={scale} must be one of {', '.join(row.name for row in _RULES)}")
        if self.rule not in _RULES[scale]:
            raise ValueError(
                f"{self._caller}rule={self.rule!r} does not go with scales of {scale}; "
                f"expected {' or '.join(map(repr, _RULES[scale]))}"
            )
        if self.block not in ("tensor", "axis") and not (
            isinstance(self.block, tuple)
            and 1 <= len(self.block) <= 2
            and all(type(length) is int and length > 0 for length in self.block)
        ):
            raise ValueError(
                f"{self._caller}block={self.block!r} must be 'tensor', 'axis' or a tuple of one or two positive lengths"
            )
        if self.zero_points and not (element.family == "int" and self.has_float_scales):
            raise ValueError(f"{self._caller}zero points need integers with FLOAT or BFLOAT16 scales")
        if not element.signed and not self.zero_points:
            raise ValueError(f"{self._caller}{element} has no negative numbers; expected a signed type, or zero points")
        if self.rule in ("full_range", "no_clipping") and (element.family != "int" or self.zero_points):
            raise ValueError(f"{self._caller}rule={self.rule!r} is for integers without zero points")
        if self.rule == "4over6" and (
            element is not dtype("FLOAT4E2M1") or self.steps is not None or self.block != (16,)
        ):
            raise ValueError(f"{self._caller}rule='4over6' is for FLOAT4E2M1 in blocks of 16, without steps")
        if self.global_scale and scale is not _E4M3:
            raise ValueError(f"{self._caller}a global scale goes with scales of {_E4M3}, not of {scale}")
        if self.steps is not None:
            if not isinstance(self.steps, Steps):
                raise TypeError(f"{self._caller}steps={self.steps!r} must be gpucast.quantization.Steps")
            if self.zero_points or self.rule == "no_clipping":
                raise ValueError(f"{self._caller}steps are for scales of the largest magnitude, without zero points")
            if self.rounds_down:
                raise ValueError(f"{self._caller}rule={self.rule!r} does not go with steps; expected 'up'")
            if self.global_scale != bool(self.steps.u):
                raise ValueError(f"{self._caller}steps have a formula u where, and only where, there is a global scale")
            if self.steps.code_needs_amax and (scale is not _FLOAT or self.global_scale):
                raise ValueError(f"{self._caller}a code of a goes with FLOAT scales, and without a global scale")

    @property
    def _caller(self) -> str:
        return f"Format {self.name!r}: "

    def __str__(self) -> str:
        return self.name

    # ---- numbers ----

    @cached_property
    @exact()
    def divisor(self) -> float:
        """The number that divides the largest magnitude of a block. It is the largest element, for "floor" its power of
        two. For "even" it is half the smallest number that rounds to twice that power; the scale is then rounded down,
        too."""
        element, largest = self.element, float(self.element.max)
        power = math.ldexp(1.0, math.frexp(largest)[1] - 1)
        if self.rule == "full_range":
            return float(element.max - element.min) / 2
        if self.rule == "even":
            mantissa_bits = element.mantissa_bits if element.is_float else element.bits - 2
            return power * (1 - math.ldexp(1.0, -(mantissa_bits + 2)))
        return power if self.rule == "floor" else largest

    @property
    def top_scale(self) -> float:
        """The scale of an array's largest magnitude, in formats with a global scale. "4over6" leaves room for 384, the
        scale by which the magnitude becomes 4 in place of 6."""
        return 256.0 if self.rule == "4over6" else float(self.scale.max)

    @property
    def negative_weight(self) -> float:
        """The factor for magnitudes of negative numbers in the search for a block's largest one: below 1 if the format
        uses the lowest integer."""
        return float(self.element.max / -self.element.min) if self.rule == "no_clipping" else 1.0

    @property
    def two_sided(self) -> bool:
        """Whether a block's scale depends on the signs of its numbers."""
        return self.zero_points or self.rule == "no_clipping"

    @property
    def rounds_down(self) -> bool:
        """Whether scales that are powers of two are rounded down."""
        return self.rule in ("floor", "even")

    @cached_property
    @exact()
    def smallest_scale(self) -> float:
        """The lower bound of scales: FLOAT's smallest normal number, so that its reciprocal is finite and processors
        that flush subnormals can read it; for a narrow type its smallest positive number. Scales of steps have none."""
        return float(self.scale.value(self.smallest_scale_code))

    @property
    def smallest_scale_code(self) -> int:
        """The code of `smallest_scale`."""
        if self.scale is _E8M0:
            return 0
        return 1 << self.scale.mantissa_bits if self.has_float_scales else 1

    @property
    def nan_in_scale(self) -> bool:
        """True: a block with NaN or infinity has the scale NaN. False: NaN stays in its element, infinities clamp."""
        return self.steps is not None or not (self.has_float_scales and self.element.has_nan)

    @property
    def has_float_scales(self) -> bool:
        """Whether scales have the range of FLOAT: these are FLOAT, or FLOAT rounded to BFLOAT16."""
        return self.scale in (_FLOAT, _BFLOAT16)

    @cached_property
    @exact()
    def bits(self) -> float:
        """Bits per number of a long array, with scales and zero points. One scale per axis or tensor counts nothing."""
        if isinstance(self.block, str):
            return float(self.element.bits)
        return self.element.bits + (self.scale.bits + 8 * self.zero_points) / math.prod(self.block)

    @property
    def zero_point(self) -> DType | None:
        """The type of the zero points, one byte each; None for a symmetric format."""
        return (dtype("INT8") if self.element.signed else dtype("UINT8")) if self.zero_points else None

    @property
    def by_given_scales(self) -> Format:
        """The format whose codes are the nearest ones by given scales: without steps, or a choice of two scales."""
        return replace(self, steps=None, rule="amax" if self.rule == "4over6" else self.rule)

    # ---- shapes ----

    @property
    def block_text(self) -> str:
        """ "tensor", "axis", "row", "32" or "128x128"."""
        if isinstance(self.block, str):
            return self.block
        return "row" if self.block == (ROW,) else "x".join(map(str, self.block))

    @property
    def min_ndim(self) -> int:
        """The fewest dimensions that an array may have."""
        if isinstance(self.block, str):
            return int(self.block == "axis")
        return 2 if len(self.block) == 2 and self.block[0] > 1 else 1

    def lengths(self, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        """The lengths of a block in each dimension of an array, at least 1 and no longer than the dimension.

        `axis` is not negative. A block of two lengths lies on the last two dimensions, of which the axis is one.
        """
        if self.block == "tensor":
            return tuple(max(n, 1) for n in shape)
        if self.block == "axis":
            return tuple(1 if i == axis else max(n, 1) for i, n in enumerate(shape))
        assert isinstance(self.block, tuple)
        lengths = [1] * len(shape)
        if self.min_ndim == 2:
            lengths[-2:] = self.block[0], self.block[0]
        lengths[axis] = self.block[-1]
        return tuple(min(length, max(n, 1)) for length, n in zip(lengths, shape, strict=True))

    def grid(self, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        """The number of blocks in each dimension. The last one may be shorter. An empty array is one block."""
        least = 1 if isinstance(self.block, str) else 0
        lengths = self.lengths(shape, axis)
        grid = [max(least, -(-n // length)) for n, length in zip(shape, lengths, strict=True)]
        if self.block == "axis":
            grid[axis] = shape[axis]
        return tuple(grid)

    def scales_shape(self, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        """The shape of the scales and zero points, as ONNX QuantizeLinear defines it: () for the whole tensor, (n,) for
        an axis, otherwise the array's shape with the blocked axes divided by the block lengths and rounded up."""
        if self.block == "tensor":
            return ()
        return (shape[axis],) if self.block == "axis" else self.grid(shape, axis)

    def rows_shape(self, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        """The shape of global scales, one for each row. () where blocks do not run along the last of several axes."""
        return shape[:-1] if self.global_scale and self.min_ndim == 1 and axis == len(shape) - 1 else ()


@dataclass(frozen=True)
class Parts:
    """The parts of a quantized array: the codes (in its shape; packed on a device), the scales, and, if the format has
    them, the zero points (in the scales' shape) and the global scale (FLOAT, shape () or `Format.rows_shape`)."""

    data: Any
    scales: Any
    zero_points: Any = None
    global_scale: Any = None


#: The lengths of blocks of a row that have kernels of their own, and of a Hadamard transform.
LENGTHS = (16, 32, 64, 128)


class Hadamard(NamedTuple):
    """A transform of runs of `length` numbers. Bit i of `negative` is set where sign i is -1."""

    length: int
    negative: int = 0

    @property
    def factor(self) -> float:
        """1 / sqrt(length), rounded to FLOAT: exact for 16 and 64."""
        return float(np.float32(self.length**-0.5))

    @property
    def words(self) -> tuple[int, ...]:
        """The bits of `negative` as four words, the low one first."""
        return tuple(self.negative >> i & 2**32 - 1 for i in range(0, LENGTHS[-1], 32))


def _table(text: str) -> dict[str, Format]:
    formats = {}
    for line in text.strip().splitlines():
        name, element, scale, blocks, rule, zero_points, global_scale = line.split()
        for block in blocks.split(","):
            lengths: Any = block if block.isalpha() else tuple(map(int, block.split("x")))
            full = f"{name}_{block}" if "," in blocks else name
            formats[full] = Format(
                full,
                dtype(element),
                dtype(scale),
                lengths,
                rule,  # type: ignore[arg-type]
                zero_points == "zp",
                global_scale == "global",
            )
    return formats


#: The named formats. Columns: name (with several blocks, each name ends in its block), element, scale, blocks, scale
#: rule, zero points, global scale.
FORMATS: dict[str, Format] = _table("""
    float8e4m3fn  FLOAT8E4M3FN  FLOAT         tensor,axis,1x128,128x128  amax   -   -
    float8e5m2    FLOAT8E5M2    FLOAT         tensor,axis,1x128,128x128  amax   -   -
    mxfp8e4m3     FLOAT8E4M3FN  FLOAT8E8M0    32                         floor  -   -
    mxfp8e4m3_up  FLOAT8E4M3FN  FLOAT8E8M0    32                         up     -   -
    mxfp8e5m2     FLOAT8E5M2    FLOAT8E8M0    32                         floor  -   -
    mxfp8e5m2_up  FLOAT8E5M2    FLOAT8E8M0    32                         up     -   -
    mxfp6e2m3     FLOAT6E2M3    FLOAT8E8M0    32                         floor  -   -
    mxfp6e2m3_up  FLOAT6E2M3    FLOAT8E8M0    32                         up     -   -
    mxfp6e3m2     FLOAT6E3M2    FLOAT8E8M0    32                         floor  -   -
    mxfp6e3m2_up  FLOAT6E3M2    FLOAT8E8M0    32                         up     -   -
    mxfp4         FLOAT4E2M1    FLOAT8E8M0    32                         floor  -   -
    mxfp4_up      FLOAT4E2M1    FLOAT8E8M0    32                         up     -   -
    nvfp4         FLOAT4E2M1    FLOAT8E4M3FN  16                         amax   -   global
    nvfp4_16x16   FLOAT4E2M1    FLOAT8E4M3FN  16x16                      amax   -   global
    nvfp4_ue5m3   FLOAT4E2M1    FLOAT8UE5M3   16                         amax   -   -
    int8          INT8          FLOAT         tensor,axis,32,64,128      amax   -   -
    int8_zp       INT8          FLOAT         tensor,axis,32,64,128      amax   zp  -
    uint8_zp      UINT8         FLOAT         tensor,axis,32,64,128      amax   zp  -
    int4          INT4          FLOAT         tensor,axis,32,64,128      amax   -   -
    int4_zp       INT4          FLOAT         tensor,axis,32,64,128      amax   zp  -
    uint4_zp      UINT4         FLOAT         tensor,axis,32,64,128      amax   zp  -
    int2          INT2          FLOAT         tensor,axis,32,64,128      amax   -   -
    int2_zp       INT2          FLOAT         tensor,axis,32,64,128      amax   zp  -
    uint2_zp      UINT2         FLOAT         tensor,axis,32,64,128      amax   zp  -
""")


def find(asked: Any, caller: str) -> Format:
    """Find a format by its name, by its name with another scale rule ("mxfp4_even", "int4_32_full_range"), or return a
    `Format` as it is. TypeError for other objects, ValueError for an unknown name."""
    if isinstance(asked, Format):
        return asked
    if getattr(asked, "shape", None):
        raise TypeError(f"{caller}: format is an array; expected a name such as 'mxfp4', after the array")
    if not isinstance(asked, str):
        raise TypeError(f"{caller}: format={asked!r} must be a name or a gpucast.quantization.Format")
    name = asked.lower()
    if (found := FORMATS.get(name)) is not None:
        return found
    for base in FORMATS.values():
        usual, *more = _RULES[base.scale]
        for rule in more:
            if base.rule == usual and name == f"{base}_{rule}":
                return replace(base, name=name, rule=rule)
    if near := _near(name):
        raise ValueError(f"{caller}: format={asked!r} is not known; did you mean one of {', '.join(near)}?")
    raise ValueError(
        f"{caller}: format={asked!r} is not known; expected one of {', '.join(FORMATS)} (symmetric integers also with "
        "_full_range or _no_clipping, mx with _even, nvfp4 with _4over6), or a Format"
    )


def _near(name: str) -> list[str]:
    """The formats of the type or family that a name begins with ("int4", "fp8", "mxfp8"), else those spelt alike."""
    if name == "nf4":
        return ["nvfp4", "mxfp4", "int4_32"]
    begin = "float" + name[2:] if name.startswith("fp") else name
    return [known for known in FORMATS if begin and known.startswith(begin)] or nearest(name, FORMATS, 3)
