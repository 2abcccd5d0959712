# SPDX-License-Identifier: Apache-2.0
"""The text of the host's loops: the rules of ``kernels/`` with plain loops around them (``kernels/host``).

A unit is one translation unit. It has functions of one source, so that units are compiled in parallel, a second or two
each. Its text is a pure function of the table of dtypes. `gpucast.host.build` makes the extension module of all units.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.rounding import BY_RULE, OF_FLOATS, ROUNDING_MODES, STOCHASTIC
from gpucast.core.rule import (
    BY_RULE_SOURCES,
    ROUND_MODE_SINCE,
    ROUND_MODES,
    CastRule,
    Options,
    has_stochastic,
    holds,
    resolve,
)
from gpucast.kernel.cast_kernel import PARTS, options
from gpucast.kernel.kernel import kernel_file, parts_text, unit

#: How a quotient is computed, by the name of the struct of ``kernels/host/codes.hpp`` that does.
DIVISIONS = ("Divided", "Multiplied", "Near")
_PTX = "instructions.cuh"
#: What casts of flat arrays need, in this order.
_CASTS = ("elements.hpp", "tables.hpp", "narrow.hpp", "casts.hpp")
#: What quantization needs beside them.
_BLOCKS = ("blocks.hpp", "codes.hpp", "doubles.hpp", "products.hpp")
#: What random rounding needs.
_RANDOM = ("philox.cuh", "stochastic.cuh")
_NUMERIC = tuple(kind for kind in DTYPES if kind.family != "string")
_COUNTED = tuple(map(dtype, ("FLOAT", "BFLOAT16", "FLOAT16")))
_INTEGER_WORDS = tuple(mode.word for mode in ROUNDING_MODES if mode.integers)
#: That the loops name.
_FLOAT, _DOUBLE = _COMPUTE = (dtype("FLOAT"), dtype("DOUBLE"))
#: The sources of the loops that quantize blocks.
BLOCK_SOURCES = tuple(map(dtype, ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")))


@dataclass(frozen=True)
class HostUnit:
    """A translation unit of C++17. It exports one table, GPUCAST_ENTRIES, of its functions by their names
    (``kernels/host/types.hpp``)."""

    name: str
    text: str
    functions: tuple[str, ...]


#: The functions of `Fused`.
_FUSED = ["cast_fused", "cast_there_and_back"]


def units() -> Iterator[HostUnit]:
    """All units of the extension module."""
    for src in _NUMERIC:
        rules = every_rule(src)
        usual = [rule for rule in rules if rule == resolve(src, rule.dst)]
        yield cast_unit(f"cast_{src.name}", usual)
        yield cast_unit(f"cast_{src.name}_by_keywords", [rule for rule in rules if rule not in usual])
        yield stochastic_unit(
            f"stochastic_{src.name}", [replace(rule, rounding=STOCHASTIC) for rule in rules if has_stochastic(rule.dst)]
        )
    for src in BY_RULE_SOURCES:
        yield cast_unit(f"rounded_{src.name}", rules_by_rule(src))
    for src in _COUNTED:
        yield counted_unit(f"counted_{src.name}", [rule for rule in every_rule(src) if is_counted(rule)])
    for src in BLOCK_SOURCES:
        yield quantization_unit(src)
    yield _finished("fused", _COMPUTE, [*_CASTS, "work.hpp", "fused.hpp"], [], _FUSED)
    copies = [f"gpucast_copy_{bits}" for bits in ("bool", 2, 4, 6, 8, 16, 32, 64)]
    packing = [f"gpucast_{way}_{bits}" for way in ("pack", "unpack") for bits in (2, 4, 6)]
    yield _finished("copies", (), ["copies.hpp", "packing.hpp"], [], [*copies, *packing], rules="")
    yield _finished("files", (), ["files.hpp"], [], ["cast_file", "sum_words", "look8", "look16", "look32"], rules="")


@lru_cache(maxsize=32)
def every_rule(src: DType) -> tuple[CastRule, ...]:
    """Every rule from a type to another that fast paths know: to floats only those that round to nearest even."""
    found = dict.fromkeys(resolve(src, dst) for dst in _NUMERIC)
    # The last opset by whose rules infinity becomes NaN, and the newest.
    opsets = (ROUND_MODE_SINCE - 1, None)
    words = (None, *_INTEGER_WORDS)
    choices = itertools.product(_NUMERIC, (True, False), ROUND_MODES, opsets, words, (None, "saturate"))
    for dst, saturate, round_mode, opset, rounding, overflow in choices:
        try:
            rule = resolve(src, dst, Options(saturate, round_mode, opset, rounding, overflow))
        except (TypeError, ValueError):
            # These do not go together.
            continue
        found[rule] = None
    return tuple(rule for rule in found if rule.src is not rule.dst and not rule.rounds_by_rule)


def rules_by_rule(src: DType) -> list[CastRule]:
    """Every rule from a type that fast paths do not know."""
    asked = [
        replace(rule, rounding=name)
        for rule in every_rule(src)
        for name in BY_RULE.get(rule.dst.family, ())
        if not holds(rule.dst, src)
    ]
    return list(dict.fromkeys(asked))


def is_counted(rule: CastRule) -> bool:
    """Tell whether a rule has a cast that counts: from the types of checkpoints to any other float."""
    is_plain = rule.src is not rule.dst and rule.rounding == OF_FLOATS
    return is_plain and rule.src in _COUNTED and rule.dst.family == "float" and rule.dst.bits <= 32


def cast_unit(name: str, rules: Sequence[CastRule]) -> HostUnit:
    """For each rule ``void NAME(const void* from, void* to, uint64 n)``, NAME as `CastRule.function` says."""
    return _casts(name, "GPUCAST_CAST", {rule.function: rule for rule in rules})


def counted_unit(name: str, rules: Sequence[CastRule]) -> HostUnit:
    """For each rule, among floats of 32 bits or fewer, ``void NAME_counted(from, to, n, uint32* stats)``;
    ``kernels/host/casts.hpp`` describes the statistics."""
    return _casts(name, "GPUCAST_COUNTED_CAST", {f"{rule.function}_counted": rule for rule in rules})


def stochastic_unit(name: str, rules: Sequence[CastRule]) -> HostUnit:
    """For each rule, with random rounding, ``void NAME(from, to, n, uint64 seed, uint64 first, uint64 skip)``
    (``kernels/host/stochastic.hpp``)."""
    functions = {rule.function: rule for rule in rules}
    return _casts(name, "GPUCAST_STOCHASTIC_CAST", functions, [*_CASTS, "stochastic.hpp"], _RANDOM)


def quantization_unit(src: DType) -> HostUnit:
    """The loops that quantize arrays of one source type (``kernels/host/blocks.hpp``)."""
    runs: dict[str, str] = {}
    rules = [resolve(_FLOAT, kind) for kind in DTYPES if kind.family == "float" and kind.bits <= 8]
    if src is not _DOUBLE:
        runs |= {
            f"{name}_{src.name}": f"{name}<gpucast::{src.name}>" for name in ("Largest", "Range", "Beyond", "Whole")
        }
        for rule, division in itertools.product(rules, DIVISIONS):
            arguments = f"gpucast::{src.name}, gpucast::{rule.dst.name}, {_rule(rule)}"
            runs[f"{division}_{src.name}_{rule.dst.name}"] = f"{division}<{arguments}>"
    lines = [f"GPUCAST_RUN({name}, {work})\n" for name, work in runs.items()]
    functions = ["find_extremes", "divide", "choose", "hadamard"] + ["step"] * (src is not _DOUBLE)
    others = [f"{function}_{src.name}" for function in functions]
    lines += [f"GPUCAST_RUN_OF({name}, {name.removesuffix(f'_{src.name}')}, {src.name})\n" for name in others]
    if src is _FLOAT:
        lines.append("GPUCAST_RUN(Equal_UINT8, Equal)\n")
        others += ["Equal_UINT8", "each_run", "multiply"]
    types = (*_COMPUTE, src, *(rule.dst for rule in rules))
    return _finished(
        f"quantization_{src.name}",
        types,
        [*_CASTS, "work.hpp", *_BLOCKS, "hadamard.hpp"],
        lines,
        [*runs, *others],
    )


def _casts(
    name: str,
    macro: str,
    rules: dict[str, CastRule],
    files: Sequence[str] = _CASTS,
    more: Sequence[str] = (),
) -> HostUnit:
    lines = [f"{macro}({name}, {rule.src.name}, {rule.dst.name}, {_rule(rule)})\n" for name, rule in rules.items()]
    types = (kind for rule in rules.values() for kind in (rule.src, rule.dst))
    return _finished(name, (*_COMPUTE, *types), files, lines, rules, _rules(*more))


def _finished(
    name: str,
    types: Iterable[DType],
    files: Sequence[str],
    lines: Sequence[str],
    functions: Iterable[str],
    rules: str | None = None,
) -> HostUnit:
    """A unit of loops with further lines after them. `rules`: the text before the loops, by default of all casts."""
    functions = tuple(functions)
    entries = "".join(f"    GPUCAST_ENTRY({function})\n" for function in functions)
    table = (
        f"namespace gpucast {{\nstatic const Entry entries[] = {{\n{entries}    {{nullptr, nullptr}},\n}};\n"
        "}  // namespace gpucast\n"
        'extern "C" {\nextern const gpucast::Entry* const GPUCAST_ENTRIES;\n'
        "const gpucast::Entry* const GPUCAST_ENTRIES = gpucast::entries;\n}\n"
    )
    rest = [_loops("types.hpp", "modes.hpp", *files), *lines, table]
    if not rules and rules is not None:
        return HostUnit(name, "".join(rest), functions)
    return HostUnit(name, unit(_rules() if rules is None else rules, types, rest), functions)


def _loops(*files: str) -> str:
    """The text of files without the lines that include one from another."""
    lines = "\n".join(kernel_file(f"host/{name}") for name in files).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(('#include "', "#pragma once")))


def _rule(rule: CastRule) -> str:
    return f"gpucast::CastRule<{options(rule)}>"


@lru_cache(maxsize=2)
def _rules(*more: str) -> str:
    """The prelude up to the cast of one element, with the host's instructions in place of PTX, and further files."""
    rules = (*PARTS[: PARTS.index("element.cuh") + 1], *more)
    return parts_text(("host/instructions.hpp", *(part for part in rules if part != _PTX)))
