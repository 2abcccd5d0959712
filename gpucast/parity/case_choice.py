# SPDX-License-Identifier: Apache-2.0
"""Chooses the cases to try, and their order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence

from gpucast.core.dtypes import DType
from gpucast.parity.cases import NUMERIC, Case, cases, directed_cases, stochastic_cases

Pair = tuple[DType, DType]


def all_pairs() -> list[Pair]:
    return list(itertools.product(NUMERIC, NUMERIC))


def all_cases(pairs: Iterable[Pair], defaults_only: bool = False) -> list[Case]:
    """The cases of some pairs: one for every rule, or only those of the default attributes."""
    if defaults_only:
        return [cases(*pair)[0] for pair in pairs]
    return [case for pair in pairs for case in (*cases(*pair), *directed_cases(*pair), *stochastic_cases(*pair))]


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
