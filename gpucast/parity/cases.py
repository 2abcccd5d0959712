# SPDX-License-Identifier: Apache-2.0
"""All rules of a pair of types, over every attribute value that matters, and the order in which they are tried. For the
parity harness and the tests."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.fuse import Random, resolve_random
from gpucast.core.rounding import BY_RULE, STOCHASTIC, word_of, words_of
from gpucast.core.rule import (
    ROUND_MODE_SINCE,
    ROUND_MODES,
    CastRule,
    Options,
    first_opset,
    has_stochastic,
    holds,
    newest_version,
    resolve,
)

NUMERIC = tuple(dtype for dtype in DTYPES if dtype.family != "string")
SMALL = tuple(dtype for dtype in NUMERIC if dtype.bits <= 16)
WIDE = tuple(dtype for dtype in NUMERIC if dtype.bits > 16)

#: The newest opset, and one before the change of infinities to FNUZ types.
OPSETS = (None, 23)

#: The seed and offset of stochastic cases: blocks of random words begin within vectors, and their numbers take more
#: than 32 bits.
RANDOM = Random(seed=0x0123456789ABCDEF, offset=2**36 - 3)
Pair = tuple[DType, DType]


@dataclass(frozen=True)
class Case:
    """A rule, and the keywords of `gpucast.cast` that select it, without those that have their default."""

    rule: CastRule
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def random(self) -> Random | None:
        """The random bits of a stochastic rule."""
        given = dict(self.attributes)
        return resolve_random(given.get("rounding"), given.get("seed"), given.get("offset"))

    def __str__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.attributes)
        return f"{self.rule.src.name} to {self.rule.dst.name}" + (f" ({words})" if words else "")


def cases(src: DType, dst: DType, opsets: Iterable[int | None] = OPSETS) -> list[Case]:
    """Every distinct rule of a pair over all attribute values, at opsets that have both types; the default first."""
    return list(_cases(src, dst, tuple(opsets)))


@functools.cache
def _cases(src: DType, dst: DType, opsets: tuple[int | None, ...]) -> tuple[Case, ...]:
    roundings = (None, *words_of(dst)) if dst.family == "int" else (None,)
    wide_float = dst.family == "float" and dst.bits >= 16
    overflows = (None, "wrap", "saturate") if dst.family == "int" else (None, "saturate") if wide_float else (None,)
    defaults = {"saturate": True, "round_mode": "up", "rounding": None, "overflow": None, "opset": None}
    found: dict[CastRule, Case] = {}
    for values in itertools.product((True, False), ROUND_MODES, roundings, overflows, opsets):
        keywords: dict[str, Any] = dict(zip(defaults, values, strict=True))
        opset = newest_version(keywords["opset"])
        since = max(first_opset(src), first_opset(dst))
        if since > opset or (opset < ROUND_MODE_SINCE and keywords["round_mode"] != "up"):
            continue
        rule = resolve(src, dst, Options(**keywords))
        found.setdefault(rule, Case(rule, tuple(pair for pair in keywords.items() if pair[1] != defaults[pair[0]])))
    return tuple(found.values())


def stochastic_cases(src: DType, dst: DType, opsets: Iterable[int | None] = OPSETS) -> list[Case]:
    """The cases of a pair with stochastic rounding, if it has any, all with the same seed and offset."""
    if not has_stochastic(dst) or src is dst:
        return []
    asked = (("rounding", STOCHASTIC), *RANDOM._asdict().items())
    return [
        Case(replace(case.rule, rounding=STOCHASTIC), (*case.attributes, *asked)) for case in cases(src, dst, opsets)
    ]


def by_rule_cases(src: DType, dst: DType, opsets: Iterable[int | None] = OPSETS) -> list[Case]:
    """The cases of a pair that round to a float neither to nearest even nor at random; none where there is nothing to
    round."""
    if dst.family != "float" or holds(dst, src):
        return []
    every = itertools.product(cases(src, dst, opsets), BY_RULE["float"])
    return [
        Case(replace(one.rule, rounding=name), (*one.attributes, ("rounding", word_of(name)))) for one, name in every
    ]


def rules(src: DType, dst: DType, opsets: Iterable[int | None] = OPSETS) -> list[CastRule]:
    """The rules of `cases`."""
    return [case.rule for case in cases(src, dst, opsets)]


def all_pairs() -> list[Pair]:
    return list(itertools.product(NUMERIC, NUMERIC))


def all_cases(pairs: Iterable[Pair], defaults_only: bool = False) -> list[Case]:
    """The cases of some pairs: one for every rule, or only the rule of the default attributes."""
    if defaults_only:
        return [cases(*pair)[0] for pair in pairs]
    return [case for pair in pairs for case in (*cases(*pair), *by_rule_cases(*pair), *stochastic_cases(*pair))]


def shuffled(chosen: Sequence[Case], seed: int) -> list[Case]:
    """A seeded order in which every pair comes once before any comes twice, so that any part covers many pairs."""
    order = random.Random(seed)
    of_pair: dict[Pair, list[Case]] = {}
    for case in chosen:
        of_pair.setdefault((case.rule.src, case.rule.dst), []).append(case)
    groups = list(of_pair.values())
    order.shuffle(groups)
    for group in groups:
        order.shuffle(group)
    turns = itertools.zip_longest(*groups)
    return [case for turn in turns for case in turn if case is not None]
