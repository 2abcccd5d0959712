# SPDX-License-Identifier: Apache-2.0
"""The text of the host's compiled library: the rules of ``kernels/`` with plain loops around them (``kernels/host``).

A unit is one translation unit, which becomes one shared library. It has the functions of one source, so that compiling
takes a second or two. Its text is a pure function of what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gpucast.codegen.cast import FILES, join, kernel_file, kernel_name, options, structs
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule

#: How a quotient is computed, by the name of the struct of ``kernels/host/blocks.hpp`` that does.
DIVISIONS = ("Divided", "Multiplied", "Near")
_PTX = "instructions.cuh"
#: What random rounding needs.
_RANDOM = ("philox.cuh", "stochastic.cuh")
#: That the loops name.
_COMPUTE = (dtype("FLOAT"), dtype("DOUBLE"))


@dataclass(frozen=True)
class HostUnit:
    """A translation unit of C++17, and the functions (``extern "C"``) that it exports."""

    text: str
    functions: tuple[str, ...]


def cast_unit(rules: Sequence[CastRule]) -> HostUnit:
    """For each rule ``void NAME(const void* from, void* to, uint64 n)``, NAME as `kernel_name` says.

    There is no function for random rounding and text. With those of ``kernels/host/calls.hpp``.
    """
    unit = _casts("GPUCAST_CAST", {kernel_name(rule): rule for rule in rules}, ["calls.hpp", "casts.hpp"])
    return replace(unit, functions=(*unit.functions, "start", "bind", "bind_tensors"))


def counted_unit(rules: Sequence[CastRule]) -> HostUnit:
    """For each rule, among floats of 32 bits or fewer, ``void NAME_counted(from, to, n, uint32* stats)``: what it
    counts is said in ``kernels/host/casts.hpp``."""
    return _casts("GPUCAST_COUNTED_CAST", {f"{kernel_name(rule)}_counted": rule for rule in rules})


def stochastic_unit(rules: Sequence[CastRule]) -> HostUnit:
    """For each rule, with random rounding, ``void NAME(from, to, n, uint64 seed, uint64 first, uint64 skip)``
    (``kernels/host/stochastic.hpp``)."""
    return _casts(
        "GPUCAST_STOCHASTIC_CAST", {kernel_name(rule): rule for rule in rules}, ["casts.hpp", "stochastic.hpp"], _RANDOM
    )


def fused_unit() -> HostUnit:
    """Casts with a scale, or that look at their source, by functions of other units (``kernels/host/fused.hpp``)."""
    return _unit(_COMPUTE, ["casts.hpp", "fused.hpp"], [], ("cast_fused", "fuse_each"))


def batch_unit() -> HostUnit:
    """Calls of the casts of other units for many arrays (``kernels/host/batch.hpp``)."""
    functions = (
        "start", "describe", "addresses_of", "new_arrays", "describe_tensors", "addresses_of_tensors", "cast_each"
    )  # fmt: skip
    return HostUnit(_loops("calls.hpp", "batch.hpp"), functions)


def quotient_unit(src: DType, rules: Sequence[CastRule]) -> HostUnit:
    """The codes of quotients, by each of `DIVISIONS`, as the rules from FLOAT round them: ``<division>_<dtype>``; and
    ``Whole`` (of integers), ``Beyond`` (counts), ``Largest`` and ``Range`` (extremes), all of one source.

    They are functions that ``each_run`` of `equal_unit` calls (``kernels/host/blocks.hpp``).
    """
    runs = {f"{name}_{src.name}": f"{name}<gpucast::{src.name}>" for name in ("Whole", "Beyond", "Largest", "Range")}
    for rule in rules:
        for division in DIVISIONS:
            arguments = f"gpucast::{src.name}, gpucast::{rule.dst.name}, {_rule(rule)}"
            runs[f"{division}_{rule.dst.name}"] = f"{division}<{arguments}>"
    return _blocks((src, *(rule.dst for rule in rules)), runs)


def equal_unit() -> HostUnit:
    """``each_run``, which calls a function for all blocks, and ``Equal``, which is one."""
    return _blocks((), {"Equal": "Equal"})


def file_unit() -> HostUnit:
    """What a conversion of files needs around its casts (``kernels/host/files.hpp``)."""
    return HostUnit(_loops("files.hpp"), ("cast_file", "sum_words", "look8", "look16", "look32"))


def _casts(
    macro: str, rules: dict[str, CastRule], files: Sequence[str] = ("casts.hpp",), more: Sequence[str] = ()
) -> HostUnit:
    lines = [f"{macro}({name}, {rule.src.name}, {rule.dst.name}, {_rule(rule)})\n" for name, rule in rules.items()]
    types = (kind for rule in rules.values() for kind in (rule.src, rule.dst))
    return _unit((*_COMPUTE, *types), files, lines, rules, more)


def _blocks(types: Iterable[DType], runs: dict[str, str]) -> HostUnit:
    lines = [f"GPUCAST_RUN({name}, {work})\n" for name, work in runs.items()]
    return _unit((*_COMPUTE, *types), ["casts.hpp", "blocks.hpp"], lines, ("each_run", *runs))


def _unit(
    types: Iterable[DType],
    files: Sequence[str],
    lines: Sequence[str],
    functions: Iterable[str],
    more: Sequence[str] = (),
) -> HostUnit:
    """`more`: further files of rules."""
    return HostUnit(join(_rules(*more), dict(structs(*types)), [_loops(*files), *lines]), tuple(functions))


def _loops(*files: str) -> str:
    return "\n".join(kernel_file(f"host/{name}") for name in ("types.hpp", *files))


def _rule(rule: CastRule) -> str:
    return f"gpucast::CastRule<{options(rule)}>"


@lru_cache(maxsize=2)
def _rules(*more: str) -> str:
    """The prelude up to the cast of one element, with the host's instructions in place of PTX, and further files."""
    rules = (*FILES[: FILES.index("element.cuh") + 1], *more)
    return "\n".join(map(kernel_file, ("host/instructions.hpp", *(name for name in rules if name != _PTX))))
