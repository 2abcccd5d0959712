# SPDX-License-Identifier: Apache-2.0
"""The rule of a cast: the operator's versions and attributes, checked and resolved to one `CastRule`.

Source: the Cast and CastLike schemas of ONNX opsets 1 to 28. The reference, the host path and the kernels all take a
`CastRule`. None of them sees an opset, or an attribute that does not matter for its pair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from gpucast.core.checks import integer
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.errors import meant
from gpucast.core.rounding import (
    BY_RULE,
    OF_FLOATS,
    OF_INTEGERS,
    STOCHASTIC,
    RoundingName,
    name_of,
    word_of,
    words_of,
)

#: The opsets in which a new version of each operator appeared. In 6 `to` became a number; all others brought types.
CAST_VERSIONS = tuple(sorted({6, *(row.opset for row in DTYPES if row.opset is not None)}))
CASTLIKE_VERSIONS = (15, 19, 21, 23, 24, 25)
#: Whose rules a cast without `opset` follows. Fixed within a major version of gpucast: an upgrade changes no bits.
DEFAULT_OPSET = CAST_VERSIONS[-1]
#: First versions (of both operators) that have the attribute.
SATURATE_SINCE = 19
ROUND_MODE_SINCE = 24
RoundMode = Literal["up", "down", "nearest"]
#: The treatment of a number out of the destination's range.
Overflow = Literal["wrap", "saturate", "infinity", "nan"]
#: The `overflow` keyword. (The meaning of None depends on the destination.)
OverflowKeyword = Literal["wrap", "saturate"]
ROUND_MODES: tuple[RoundMode, ...] = ("up", "down", "nearest")


class Options(NamedTuple):
    """The keywords of `gpucast.cast` as given, in their order; then the caller and the versions of its operator."""

    saturate: Any = True
    round_mode: Any = "up"
    #: None: the rules of DEFAULT_OPSET, and the types that no opset has, too.
    opset: Any = None
    rounding: Any = None
    overflow: Any = None
    seed: Any = None
    offset: Any = 0
    scale: Any = None
    amax: Any = None
    device: Any = None
    out: Any = None
    copy: Any = True
    caller: str = "cast"
    versions: tuple[int, ...] = CAST_VERSIONS
    #: The name of the argument that says the new type.
    argument: str = "to"

    @property
    def fuses(self) -> bool:
        """Whether a keyword of fused casts is given, rightly or not."""
        given = self.seed is not None or self.scale is not None or self.amax is not None
        return given or type(self.offset) is not int or self.offset != 0 or self.rounding == STOCHASTIC


#: The operator's attributes and gpucast's own keywords: together they decide on a rule.
ATTRIBUTES = Options._fields[:5]
#: The sources that have loops on the host for the modes of `BY_RULE`. Other numbers go through DOUBLE, which holds all.
BY_RULE_SOURCES = tuple(map(dtype, ("DOUBLE", "INT64", "UINT64")))


def destination(to: Any, options: Options) -> DType:
    """The dtype to cast to. The TypeError names the caller and the argument."""
    return dtype(to, caller=f"{options.caller}: {options.argument}=")


@dataclass(frozen=True)
class CastRule:
    """The decisions of a cast. Fields that do not matter for the pair have their default, so equal rules compare equal.

    - `overflow`: to integers "wrap" or "saturate"; to wide floats "infinity" or "saturate"; to the narrow floats that
      have a NaN (float8, FLOAT8E8M0) "saturate", or else "infinity" where the type has one and "nan" where not; to the
      types with neither (float4, float6) "saturate". To BOOL and STRING it has no meaning and is "wrap".
    - `infinity_is_nan`: with overflow "saturate" a source infinity gives NaN (FNUZ types, opsets 19 to 23).
    - `rounding`: a name of `gpucast.core.rounding`. A cast that rounds nothing has its family's: "toward_zero" to
      integers, else "ties_to_even".
    - `round_mode`: to FLOAT8E8M0 only.
    """

    src: DType
    dst: DType
    overflow: Overflow = "wrap"
    infinity_is_nan: bool = False
    rounding: RoundingName = OF_FLOATS
    round_mode: RoundMode = "up"

    @property
    def is_text(self) -> bool:
        """Whether text is read or written."""
        return "string" in (self.src.family, self.dst.family)

    @property
    def rounds_by_rule(self) -> bool:
        """Whether only the rule itself can round as it says: fast paths know rounding to nearest even, and to integers
        toward zero."""
        return self.rounding in BY_RULE.get(self.dst.family, ())

    @property
    def function(self) -> str:
        """The name of its function in C++, such as `gpucast_float32_to_float8e4m3fn`: attributes that differ from the
        default are appended."""
        default = resolve(self.src, self.dst)
        parts = ["gpucast", self.src.numpy_name.replace("_", ""), "to", self.dst.numpy_name.replace("_", "")]
        for chosen, usual in (
            (self.overflow, default.overflow),
            (word_of(self.rounding), word_of(default.rounding)),
            (self.round_mode, default.round_mode),
        ):
            if chosen != usual:
                parts.append(chosen)
        return "_".join(parts + ["infinity_is_nan"] * self.infinity_is_nan)


def newest_version(opset: Any, versions: tuple[int, ...] = CAST_VERSIONS, caller: str = "cast") -> int:
    """The newest version of the operator in an opset. ValueError outside the operator's first opset to 28."""
    if opset is None:
        return DEFAULT_OPSET
    number = opset if type(opset) is int else integer(opset, f"{caller}: opset")
    if not versions[0] <= number <= DEFAULT_OPSET:
        raise ValueError(f"{caller}: opset={number} is not supported; expected {versions[0]} to {DEFAULT_OPSET}")
    newest = versions[0]
    for version in versions:
        # torch.compile reads this, and knows no bisect.
        newest = version if version <= number else newest
    return newest


def first_opset(row: DType) -> int:
    """The first opset whose Cast takes a type. A type that no known version takes goes with the default alone."""
    return row.opset if row.opset is not None and row.opset <= DEFAULT_OPSET else DEFAULT_OPSET


_DEFAULT = Options()


def resolve(src: DType, dst: DType, options: Options = _DEFAULT) -> CastRule:
    """Check the attributes of a cast and return its rule. With a scale, whatever it is, it is the rule by which the
    products, DOUBLEs, are cast, but for its source. Of the options the attributes matter here, no other keyword.

    TypeError for a type that the operator's version lacks and for a `saturate` that is no boolean. ValueError for every
    other value that is illegal, newer than the version, or meaningless for the destination.
    """
    saturate, round_mode, opset, overflow = options.saturate, options.round_mode, options.opset, options.overflow
    caller = options.caller
    version = newest_version(opset, options.versions, caller)
    for role, row in (("source", src), ("to", dst)):
        since = row.opset
        if opset is not None and (since is None or since > version):
            entered = "is in no opset" if since is None else f"entered at opset {since}"
            later = since is not None and since <= options.versions[-1]
            wanted = f"expected opset {since} or later" if later else "leave opset out"
            raise TypeError(
                f"{caller}: {role}={row.name} {entered}; opset={opset} has version {version} of the operator; {wanted}"
            )
    if isinstance(saturate, np.bool_) or (isinstance(saturate, int) and saturate in (0, 1)):
        saturate = bool(saturate)
    if not isinstance(saturate, bool):
        raise TypeError(f"{caller}: saturate={saturate!r} must be True or False")
    if not isinstance(round_mode, str) or round_mode not in ROUND_MODES:
        near = meant(round_mode, ROUND_MODES)
        raise ValueError(
            f"{caller}: round_mode={round_mode!r} is not legal; expected one of {', '.join(ROUND_MODES)}{near}"
        )
    if not saturate and version < SATURATE_SINCE:
        raise ValueError(f"{caller}: saturate=False needs opset {SATURATE_SINCE}; opset={opset} has version {version}")
    if round_mode != "up" and version < ROUND_MODE_SINCE:
        raise ValueError(
            f"{caller}: round_mode={round_mode!r} needs opset {ROUND_MODE_SINCE}; opset={opset} has version {version}"
        )
    if options.rounding is not None:
        _check_choice(caller, "rounding", options.rounding, _roundings(src, dst), src, dst)
    if overflow is not None:
        _check_choice(caller, "overflow", overflow, _overflows(src, dst), src, dst)

    if options.scale is not None and src.name != "DOUBLE":
        return replace(resolve(dtype("DOUBLE"), dst, options), src=src)
    if src is dst or dst.family in ("bool", "string"):
        return CastRule(src, dst)
    rounding = OF_INTEGERS if dst.family == "int" else OF_FLOATS
    if options.rounding is not None and (options.rounding == STOCHASTIC or not holds(dst, src)):
        rounding = name_of(options.rounding)
    if dst.family == "int":
        return CastRule(src, dst, overflow=overflow or "wrap", rounding=rounding)
    if not dst.has_nan:
        return CastRule(src, dst, overflow="saturate", rounding=rounding)
    without: Overflow = "infinity" if dst.has_inf else "nan"
    if not dst.saturate_applies:
        return CastRule(src, dst, overflow=overflow or without, rounding=rounding)
    if not saturate and overflow is None:
        return CastRule(src, dst, overflow=without, rounding=rounding, round_mode=_mode(dst, round_mode))
    return CastRule(
        src,
        dst,
        overflow="saturate",
        infinity_is_nan=dst.specials == "fnuz" and SATURATE_SINCE <= version < 24,
        rounding=rounding,
        round_mode=_mode(dst, round_mode),
    )


def rule_of(src: DType, dst: DType, options: Options) -> CastRule:
    """The rule of `resolve`, kept. (PyTorch's compiler, which warns of what is kept, reads `resolve`.)"""
    asked = src, dst, options.scale is not None, options.caller, options.versions, *options[:5]
    try:
        return _rule_of(*asked)
    except TypeError:
        # Also for a value that has no hash; the message is that of the checks.
        pass
    return resolve(src, dst, options)


@lru_cache(maxsize=4096, typed=True)
def _rule_of(
    src: DType, dst: DType, scaled: bool, caller: str, versions: tuple[int, ...], *attributes: Any
) -> CastRule:
    scale = 1.0 if scaled else None
    return resolve(src, dst, Options(*attributes)._replace(scale=scale, caller=caller, versions=versions))


def _mode(dst: DType, round_mode: Any) -> RoundMode:
    return round_mode if dst.family == "e8m0" else "up"


def has_stochastic(dst: DType) -> bool:
    """Tell whether a destination can be rounded to at random: a float of 16 bits or fewer."""
    return dst.family == "float" and dst.bits <= 16


def holds(dst: DType, src: DType) -> bool:
    """Tell whether a cast rounds nothing: a float type has every finite number of another numeric type, or both are
    integers (or text, of which integers are exact)."""
    if dst.family == "int":
        return not src.is_float
    if src.family in ("bool", "int"):
        return src.bits - src.sign_bits <= dst.mantissa_bits + 1 and max(src.max, -src.min) <= dst.max
    if src.family == "string":
        return False
    # The exponent of the last bit of the smallest number.
    lowest = [1 - (kind.family == "e8m0") - kind.bias - kind.mantissa_bits for kind in (src, dst)]
    return src.mantissa_bits <= dst.mantissa_bits and lowest[0] >= lowest[1] and src.max <= dst.max


def _roundings(src: DType, dst: DType) -> tuple[str, ...]:
    """The values of the `rounding` keyword that have a meaning for a pair."""
    if src.family != "string":
        return words_of(dst)
    return tuple(word for word in words_of(dst) if dst.is_float and word != STOCHASTIC)


def _overflows(src: DType, dst: DType) -> tuple[Overflow, ...]:
    """The values of the `overflow` keyword that have a meaning for a pair."""
    if dst.family == "int":
        return ("wrap", "saturate") if src.family != "string" else ()
    return ("saturate",) if dst.is_float else ()


def _check_choice(caller: str, name: str, value: Any, legal: tuple[str, ...], src: DType, dst: DType) -> None:
    if isinstance(value, str) and value in legal:
        return
    expected = " or ".join(["None", *map(repr, legal)])
    if src.family == "string":
        raise ValueError(
            f"{caller}: {name}={value!r} does not apply to text; expected {expected} from STRING to {dst.name}"
            f"{meant(value, legal)}"
        )
    raise ValueError(
        f"{caller}: {name}={value!r} does not apply to {dst.name}; expected {expected}{meant(value, legal)}"
    )
