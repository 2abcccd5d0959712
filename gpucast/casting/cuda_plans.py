# SPDX-License-Identifier: Apache-2.0
"""Plans of casts on devices: the module launches kernels that are kept by device."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from gpucast import casting, kernel
from gpucast.arrays.array import Array
from gpucast.arrays.packed import PackedArray
from gpucast.casting import plans
from gpucast.core.rule import CastRule
from gpucast.kernel import ON_NEW_DRIVER
from gpucast.kernel.fused_kernel import FusedOps, cast_kernel


class Kernels(NamedTuple):
    """The kernels of a plan by device: those that multiply by any DOUBLE, and those by a scale that FLOAT has."""

    by_double: dict[int, Any]
    by_float: dict[int, Any] | None

    @classmethod
    def of(cls, fuses: bool) -> Kernels:
        return cls({}, {} if fuses else None)

    def add(self, rule: CastRule, ops: FusedOps, device: int, unpacked: bool = False) -> None:
        """Keep the kernel that the checked path has loaded."""
        found = kernel.driver.loaded(cast_kernel(rule, "contiguous", unpacked, ops), device)
        if found is not None:
            (self.by_double if ops.scaling == "wide" or self.by_float is None else self.by_float)[device] = found


def of_source(source: Array, array: type, rule: CastRule, ops: FusedOps) -> Any:
    """The plan for casts of arrays like `source`, whose bytes are in one of CuPy's class `array`, with its kernel if
    that is loaded; None where there is none."""
    assert source.device is not None, "on a device"
    known = _plan(array, rule, source.packed, ops.fuses(rule), ops.scaling != "none", ops.amax)
    if known is None:
        return None
    plan, kernels = known
    kernels.add(rule, ops, source.device, rule.src.packed and not source.packed)
    return plan


@lru_cache(maxsize=1024)
def _plan(
    array: type, rule: CastRule, packed: bool, fuses: bool, scaled: bool, amax: bool
) -> tuple[Any, Kernels] | None:
    """A plan for each kind of kernel, and its kernels."""
    works = plans.works(rule, fuses, scaled)
    if works is None:
        return None
    kernels = Kernels.of(fuses)
    bits = rule.src.bits if packed else 0, rule.dst.bits if rule.dst.packed else 0
    run = None if fuses else casting.cuda_strided.strided(array, packed, rule)
    empty = casting.cuda_strided.empty(rule.dst)
    plan = plans.make("cupy", run, empty, rule, works, *kernels, PackedArray, rule.dst, bits)
    return plan, kernels


# The kernels are those of the driver with which they were loaded.
ON_NEW_DRIVER.append(_plan.cache_clear)
