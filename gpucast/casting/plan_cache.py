# SPDX-License-Identifier: Apache-2.0
"""What casts have worked out, for the next call that looks the same: the rule, and a way past the checks.

A plan belongs to the kind and dtype of the source, the destination and the attributes, all of them legal, and is found
with one look-up of a dictionary. Where it is made, `keep` lets in only keys that say all of this by value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucast import gpu
from gpucast.core.dtypes import DTYPES, DType, is_foreign
from gpucast.core.rule import Rule

#: Spellings of a type and of attributes are many; casts of one program are few.
_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """A rule, and the short way to apply it."""

    rule: Rule
    #: ``run(x, out)`` gives the result, or None, nothing done, where only the whole path can tell what is right: other
    #: layouts, an `out` that may not fit, what cannot run. It raises what an allocation or a launch raises, no more.
    #: That of a fused cast is ``run(x, out, random, scale, amax)``, where `random` alone is checked.
    run: Callable[..., Any]


#: By (type of x, its dtype, type of `to`, `to`, then the attributes, those that are numbers with their types, whether
#: the operator is Cast, and whether there is a scale, None for a plain cast). Types are named because 1, 1.0 and True
#: are equal, and not all of them legal.
PLANS: dict[tuple[Any, ...], Plan] = {}
#: The types of x that plans may have been made for.
ARRAYS: set[type] = {np.ndarray}


def keep(key: tuple[Any, ...], plan: Plan) -> None:
    """Keep a plan, if the key's values can never come to mean something else."""
    _, _, _, to, *attributes = key
    if (
        (isinstance(to, (np.dtype, DType)) or type(to) in (str, int, type) or is_foreign(type(to)))
        and all(type(value) in (bool, int, str, type, type(None)) for value in attributes)
        and plan.rule.src in DTYPES
        and plan.rule.dst in DTYPES
    ):
        if len(PLANS) >= _KEPT:
            PLANS.clear()
        PLANS[key] = plan
        ARRAYS.add(key[0])


#: Those of `gpucast.casting.batch_plans`.
OF_MANY: dict[tuple[Any, ...], Any] = {}


def forget() -> None:
    """Drop all plans."""
    PLANS.clear()
    OF_MANY.clear()


# Plans hold kernels of the driver with which they were made.
gpu.ON_NEW_DRIVER.append(forget)
