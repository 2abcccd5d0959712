# SPDX-License-Identifier: Apache-2.0
"""Fake casts on a device: there and back in one launch."""

from __future__ import annotations

from gpucast.arrays.array import Array
from gpucast.casting.cuda import empty_like
from gpucast.casting.cuda_launches import fused_values, layout_of
from gpucast.core.arithmetic import exact
from gpucast.core.fuse import Fuse
from gpucast.core.rule import CastRule
from gpucast.kernel import driver
from gpucast.kernel.fused_kernel import FUSED, FusedOps, fused_kernel


@exact()
def apply(source: Array, there: CastRule, back: CastRule, target: Array | None, fuse: Fuse) -> Array:
    """Cast by `there`, and the results back by `back`, into `target`, which is where the source is, or a new array."""
    assert source.device is not None
    with driver.driver().on(source.device):
        if target is None:
            target = empty_like(source, source.dtype, "fake_cast")
        if source.size:
            layout = layout_of(source, target, fuse)
            given = FUSED.pack(*fused_values(fuse)) + (b"" if layout.dims is None else layout.dims.packed)
            kernel = fused_kernel(there, FusedOps.of(fuse), layout.shape, back=back)
            driver.launch(kernel, source.device, source.address, target.address, layout.n, given)
    return target
