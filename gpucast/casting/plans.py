# SPDX-License-Identifier: Apache-2.0
"""The cache of plans: what casts have worked out, for the next call that looks the same.

A plan is found by the class of x, its dtype, `to` and the keywords; it then looks at the array itself. The cache is in
the extension module, which runs the plans of NumPy's arrays; without it there is one here for arrays on devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpucast import gpu
from gpucast.core.dtypes import DTYPES, DType, is_foreign
from gpucast.core.rule import CAST_VERSIONS, CastRule, Options
from gpucast.host import loops
from gpucast.host.extension import MODULE

#: The most plans of a cache in Python.
_KEPT = 2048


#: The keywords of a cast.
_DEFAULTS: dict[str, Any] = dict(zip(Options._fields[:12], Options()[:12], strict=True))


class _Cache:
    """The functions of `gpucast._host` for plans, where that is missing."""

    def __init__(self) -> None:
        self._plans: dict[tuple[Any, ...], tuple[bool, Callable[..., Any]]] = {}

    def hit(self, x: Any, to: Any, *call: Any) -> Any:
        if len(call) == 1:
            (keywords,) = call
            if not keywords.keys() <= _DEFAULTS.keys():
                return None
            call = tuple((_DEFAULTS | keywords).values())
        saturate, round_mode, opset, rounding, overflow, seed, offset, scale, amax, device, out, copy = call
        fuses = not (seed is scale is amax is None)
        try:
            plan = self._plans.get(_key(x, to, saturate, round_mode, opset, rounding, overflow, fuses, scale))
        except Exception:  # x has no dtype, or some part no hash. The checked path takes it, or tells what is wrong.
            return None
        if plan is None or device is not None or not (copy is True or (copy is False and plan[0])):
            return None
        if fuses:
            return plan[1](x, out, seed, offset, scale, amax)
        return plan[1](x, out) if type(offset) is int and offset == 0 else None

    def keep(self, *call: Any) -> None:
        x, to, saturate, round_mode, opset, rounding, overflow, seed, _, scale, amax, *_, plan = call
        fuses = not (seed is scale is amax is None)
        if len(self._plans) >= _KEPT:
            self.forget()
        self._plans[_key(x, to, saturate, round_mode, opset, rounding, overflow, fuses, scale)] = plan

    def forget(self) -> None:
        self._plans.clear()

    def count_plans(self) -> int:
        return len(self._plans)

    @staticmethod
    def plan(rule: Any, changes: bool, run: Any, *_: Any) -> tuple[bool, Any]:
        return changes, run


def _key(x: Any, to: Any, saturate: Any, round_mode: Any, opset: Any, rounding: Any, overflow: Any, *fused: Any) -> Any:
    """Types are named, because 1, 1.0 and True are equal, and not all of them legal."""
    fuses, scale = fused
    return (
        type(x), x.dtype, type(to), to, type(saturate), saturate, round_mode, type(opset), opset, rounding, overflow,
        fuses, scale is not None,
    )  # fmt: skip


_CACHE: Any = _Cache() if MODULE is None else MODULE
if MODULE is not None:
    MODULE.name_keywords(tuple(_DEFAULTS), tuple(_DEFAULTS.values()))
#: ``hit(x, to, keywords)``, or ``hit(x, to, saturate, ..., copy)`` with all of them in their order: the result of a
#: `gpucast.cast` for which there is a plan; None, nothing done, for any other call.
hit: Callable[..., Any] = _CACHE.hit
forget: Callable[[], None] = _CACHE.forget
count: Callable[[], int] = _CACHE.count_plans
#: `hit`, by the types of x for which there may be plans. A library whose compiler traces calls puts a function of its
#: own here, into which that can look.
HITS: dict[type, Callable[..., Any]] = {np.ndarray: hit}


def keep(
    x: Any,
    to: Any,
    options: Options,
    rule: CastRule,
    run: Callable[..., Any] | None = None,
    kernels: dict[int, Any] | None = None,
) -> None:
    """Keep the plan of a call, if what it names can never come to mean something else.

    ``run(x, out)`` gives the result, or None, nothing done, where only the checked path can tell what is right. It
    raises what an allocation or a launch raises, no more. That of a fused cast is
    ``run(x, out, seed, offset, scale, amax)``. None: the module does it, for NumPy's arrays. `kernels`: those that
    `run` has for each device; with them the module casts a CuPy array into another by itself.
    """
    if options.versions is not CAST_VERSIONS or not is_lasting(x.dtype, to, *options[:5]):
        return
    if rule.src not in DTYPES or rule.dst not in DTYPES:
        return
    changes = rule.src is not rule.dst
    if run is not None:
        src, dst = (None, None) if kernels is None else (x.dtype, rule.dst.numpy)
        plan = _CACHE.plan(rule, changes, run, src, dst, None, kernels)
    elif MODULE is not None:
        fuses = not (options.seed is options.scale is options.amax is None)
        try:
            work = loops.fused(rule, options.scale is not None) if fuses else loops.plain(rule)
        except LookupError:
            return
        plan = MODULE.plan(rule, changes, None, rule.src.numpy, rule.dst.numpy, work, None)
    else:
        return
    HITS.setdefault(type(x), hit)
    _CACHE.keep(x, to, *options[:12], plan)


def is_lasting(*values: Any) -> bool:
    """Whether no value can come to mean something else: none can change."""
    return all(
        isinstance(value, (type, np.dtype, DType))
        or type(value) in (bool, int, str, type(None))
        or is_foreign(type(value))
        for value in values
    )


# Plans hold kernels of the driver with which they were made.
gpu.ON_NEW_DRIVER.append(forget)
