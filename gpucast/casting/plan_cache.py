# SPDX-License-Identifier: Apache-2.0
"""What casts have worked out, for the next call that looks the same: the rule, and a way past the checks.

A plan is found with one look-up of a dictionary, by a key that says all that it depends on: the kind and dtype of the
source, the destination and the attributes, all of them legal. Plain, fused and batch casts have the one cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpucast import gpu
from gpucast.core.dtypes import DTYPES, DType, is_foreign
from gpucast.core.options import DEFAULT_OPSET
from gpucast.core.rule import CastRule
from gpucast.cpu import compiled

#: The most plans. A program needs few, but there are many spellings of types and attributes, each of them a key.
_KEPT = 4096


class AnyPlan(Protocol):
    """A `Plan`, or the `gpucast.casting.batch_plans.BatchPlans` of a batch."""

    @property
    def dtypes(self) -> Collection[DType]:
        """The dtypes that it casts from and to."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rule of a plain or fused cast, and the fast path to apply it."""

    rule: CastRule
    #: ``run(x, out)`` gives the result, or None, nothing done, where only the checked path can tell what is right:
    #: other layouts, an `out` that may not fit, keywords that may be wrong, what cannot run. It raises what an
    #: allocation or a launch raises, no more. That of a fused cast is ``run(x, out, seed, offset, scale, amax)``.
    run: Callable[..., Any]

    @property
    def dtypes(self) -> Collection[DType]:
        return self.rule.src, self.rule.dst

    @property
    def changes(self) -> bool:
        """Whether the result is never the source itself, so that ``copy=False`` asks for the same as ``copy=True``."""
        return self.rule.src is not self.rule.dst


#: The keys are those of `gpucast.casting.cast.cast_with` and of `gpucast.casting.batch_plans`. They name the types of
#: numbers, because 1, 1.0 and True are equal, and not all of them legal.
PLANS: dict[tuple[Any, ...], Any] = {}
#: Those of single casts without keywords but `out`, by what is left of their keys: the look-up takes half the time.
SIMPLE: dict[tuple[Any, ...], Plan] = {}
#: What such keys end with, behind the kinds of array and destination.
_NO_KEYWORDS = (bool, True, "up", int, DEFAULT_OPSET, None, None, True, None)
#: The types of x that plans of single casts in `PLANS` may have been made for.
ARRAYS: set[type] = {np.ndarray}
#: How such plans are found in `SIMPLE`, by the type of x. A compiler that traces calls with arrays of its library would
#: compile anew whenever plans are made, if it looked into the dictionary.
FIND: dict[type, Callable[[tuple[Any, ...]], Plan | None]] = {np.ndarray: SIMPLE.get}


def keep(key: tuple[Any, ...], plan: AnyPlan) -> None:
    """Keep a plan, if the key's values can never come to mean something else."""
    if is_lasting(key) and all(kind in DTYPES for kind in plan.dtypes):
        if len(PLANS) >= _KEPT:
            forget()
        PLANS[key] = plan
        kinds = len(key) - len(_NO_KEYWORDS)
        if isinstance(plan, Plan) and key[kinds:] == _NO_KEYWORDS:
            SIMPLE[key[:kinds]] = plan


def keep_simple(key: tuple[Any, ...], plan: Plan) -> None:
    """Keep the plan of a cast without keywords but `out` of another library's arrays, for which `FIND` has a way."""
    if is_lasting(key):
        if len(SIMPLE) >= _KEPT:
            forget()
        SIMPLE[key] = plan


def is_lasting(key: tuple[Any, ...]) -> bool:
    """Whether no value of a key can come to mean something else: none can change, and equal ones are of one type."""
    return all(
        isinstance(value, (type, np.dtype, DType))
        or type(value) in (bool, int, str, type(None))
        or is_foreign(type(value))
        for value in key
    )


def forget() -> None:
    """Drop all plans."""
    PLANS.clear()
    SIMPLE.clear()


def forget_rule(rule: CastRule) -> None:
    """Drop the plans of single casts by a rule."""
    for plans in (PLANS, SIMPLE):
        # A list of the items may start the garbage collector before CPython 3.12, and so a cast that adds a plan.
        for key, plan in plans.copy().items():
            if isinstance(plan, Plan) and plan.rule == rule:
                plans.pop(key, None)


# Plans hold kernels of the driver with which they were made.
gpu.ON_NEW_DRIVER.append(forget)
# And those of the host are made for what is compiled.
compiled.ON_READY.append(forget_rule)
