# SPDX-License-Identifier: Apache-2.0
"""The cache of plans: a cast keeps its decisions for the next call of the same kind.

A plan is found by the class of x, its dtype, `to` and the keywords; it then looks at the array itself. The cache is in
the extension module, which runs the plans of NumPy's arrays; without it there are none.
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

#: The keywords of a cast.
_DEFAULTS: dict[str, Any] = dict(zip(Options._fields[:12], Options()[:12], strict=True))


def _nothing(*call: Any) -> None:
    """Keep no plan: without the extension module every cast takes the checked path."""


if MODULE is not None:
    MODULE.name_keywords(tuple(_DEFAULTS), tuple(_DEFAULTS.values()))
#: ``hit(x, to, keywords)``, or ``hit(x, to, saturate, ..., copy)`` with all of them in their order: the result of a
#: `gpucast.cast` for which there is a plan; None, nothing done, for any other call.
hit: Callable[..., Any] = _nothing if MODULE is None else MODULE.hit
forget: Callable[[], None] = _nothing if MODULE is None else MODULE.forget
count: Callable[[], int] = (lambda: 0) if MODULE is None else MODULE.count_plans
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
    """Keep the plan of a call, if the names in the call can never change their meaning.

    ``run(x, out)`` gives the result, or None, nothing done, where only the checked path can tell what is right. It
    raises what an allocation or a launch raises, no more. That of a fused cast is
    ``run(x, out, seed, offset, scale, amax)``. None: the module does it, for NumPy's arrays. `kernels`: those that
    `run` has for each device; with them the module casts a CuPy array into another by itself.
    """
    if MODULE is None or options.versions is not CAST_VERSIONS or not is_lasting(x.dtype, to, *options[:5]):
        return
    if rule.src not in DTYPES or rule.dst not in DTYPES:
        return
    if not has_arrays(rule):
        return
    changes = rule.src is not rule.dst
    if run is not None:
        src, dst = (None, None) if kernels is None else (x.dtype, rule.dst.numpy)
        plan = MODULE.plan(rule, changes, run, src, dst, None, kernels)
    else:
        fuses = not (options.seed is options.scale is options.amax is None)
        try:
            work = loops.fused(rule, options.scale is not None) if fuses else loops.plain(rule)
        except LookupError:
            return
        plan = MODULE.plan(rule, changes, None, rule.src.numpy, rule.dst.numpy, work, None)
    HITS.setdefault(type(x), hit)
    MODULE.keep(x, to, *options[:12], plan)


def has_arrays(rule: CastRule) -> bool:
    """Whether the module knows the arrays of both types: not those of types that NumPy and ml_dtypes lack."""
    return not (rule.src.numpy.names or rule.dst.numpy.names)


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
