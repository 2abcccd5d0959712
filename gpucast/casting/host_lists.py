# SPDX-License-Identifier: Apache-2.0
"""Lists of host arrays of one library, cast in one call of the extension module.

A kind of call (destination, keywords) has a plan for each dtype of its sources; the module looks at the arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpucast.arrays.batch_item import BatchItem
from gpucast.casting import plans
from gpucast.casting.fused_options import resolve_finite, resolve_scale
from gpucast.core.dtypes import DType
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import Options
from gpucast.host import loops
from gpucast.host.extension import MODULE

#: The most kinds of call.
_KEPT = 256
#: Plans by the dtype of a source as its library has it, for each kind of call and class of arrays.
_PLANS: dict[tuple[Any, ...], dict[Any, Any]] = {}

#: ``run(plans, given, outs, dst, fused)``: the results, which are `outs` where there are any; None, nothing done, for
#: arrays that no plan is for.
Run = Callable[[dict[Any, Any], list[Any], list[Any] | None, DType, FusedInputs], Sequence[Any] | None]


def _arrays(
    plans: dict[Any, Any], given: list[Any], outs: list[Any] | None, dst: DType, fused: FusedInputs
) -> Sequence[Any] | None:
    results: Sequence[Any] | None = MODULE.cast_each(plans, given, outs, fused.scale, fused.finite, None, None)
    return results


#: By the class of the first array. Other libraries add theirs.
RUNS: dict[type, Run] = {np.ndarray: _arrays} if MODULE is not None else {}


def run(given: list[Any], outs: list[Any] | None, dst: DType, options: Options, finite: Any) -> Sequence[Any] | None:
    """The results of a call like an earlier one; None, nothing done, where only the checked path can tell."""
    if not given or type(given[0]) not in RUNS or options.amax is not None:
        return None
    try:
        fused = _fused(options, finite)
        of_kind = None if fused is None else _PLANS.get(_key(type(given[0]), dst, options, fused))
    except Exception:  # The checked path tells what is wrong.
        return None
    if fused is None or of_kind is None:
        return None
    return RUNS[type(given[0])](of_kind, given, outs, dst, fused)


def keep(items: Sequence[BatchItem], dst: DType, options: Options, finite: Any) -> None:
    """Make plans for the arrays of a successful call."""
    if (
        options.amax is not None
        or dst.family == "string"
        or type(items[0].given) not in RUNS
        or items[0].source.device is not None
    ):
        return
    fused = _fused(options, finite)
    if fused is None:
        return
    kind = type(items[0].given)
    if not plans.is_lasting(*options[:5]):
        return
    if len(_PLANS) >= _KEPT:
        _PLANS.clear()
    of_kind = _PLANS.setdefault(_key(kind, dst, options, fused), {})
    for item in items:
        if type(item.given) is kind and _is_plain(item):
            of_kind[item.given.dtype] = MODULE.plan(
                item.rule, True, None, item.rule.src.numpy, dst.numpy, loops.work(item.rule, fused), None
            )


def _is_plain(item: BatchItem) -> bool:
    source = item.source
    # Objects may be numbers, which were copied into another array.
    if source.device is not None or source.packed or not (item.adapter or item.given is source.array):
        return False
    if item.rule.src.family == "string" or not plans.has_arrays(item.rule):
        return False
    return bool(source.data.dtype.isnative) and loops.has(item.rule)


def _fused(options: Options, finite: Any) -> FusedInputs | None:
    """The operations fused with a call; None if no plan serves it."""
    if options.scale is not None and math.prod(np.shape(options.scale)) != 1:
        return None
    if options.seed is not None or type(options.offset) is not int or options.offset:
        return None
    return FusedInputs(
        scale=None if options.scale is None else resolve_scale(options.scale, None, options.caller),
        finite=None if finite is None else resolve_finite(finite, None, options.caller),
    )


def _key(kind: type, dst: DType, options: Options, fused: FusedInputs) -> tuple[Any, ...]:
    """Types are named, because 1, 1.0 and True are equal, and not all of them legal."""
    return (
        kind, dst, type(options.saturate), options.saturate, options.round_mode, type(options.opset), options.opset,
        options.rounding, options.overflow, fused.scaling, fused.finite is None,
    )  # fmt: skip
