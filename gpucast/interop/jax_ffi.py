# SPDX-License-Identifier: Apache-2.0
"""Plain casts within XLA's programs, by handlers of the extension module: no call of Python, no wait, on the CPU and on
CUDA, there on XLA's own stream."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax

from gpucast import gpu
from gpucast.codegen.cast_kernel import kernel_name
from gpucast.codegen.spec import CastSpec
from gpucast.compile import nvidia
from gpucast.core.rule import STOCHASTIC, CastRule
from gpucast.host import loops
from gpucast.host.extension import MODULE

_TARGET = "gpucast_cast"
#: The rules of programs, by the names of their kernels.
_RULES: dict[str, CastRule] = {}


def can_cast(rule: CastRule) -> bool:
    """Whether there is a handler for a rule, whose arrays have whole bytes, on the devices that JAX uses by default."""
    if rule.src is rule.dst or rule.src.packed or rule.dst.packed or rule.rounding == STOCHASTIC:
        return False
    on_cpu = jax.default_backend() == "cpu"
    # XLA's handler for the CPU runs loops alone.
    if not (_register() and loops.has(rule)) or (on_cpu and loops.is_product(rule)):
        return False
    return on_cpu or (jax.default_backend() == "gpu" and gpu.driver.unavailable() is None)


def cast(rule: CastRule, x: Any, kind: Any) -> Any:
    """The cast of a traced array of codes, for which `can_cast`; `kind`: the shape and dtype of the result."""
    name = kernel_name(rule)
    _RULES[name] = rule
    call: Any = jax.ffi.ffi_call(_TARGET, kind, vmap_method="broadcast_all")
    return call(x, cast=name)


@lru_cache(maxsize=1)
def _register() -> bool:
    """Give XLA the handlers, once; False without the extension module, or for a JAX without the interface."""
    if MODULE is None or not hasattr(jax, "ffi"):
        return False
    register: Any = jax.ffi.register_ffi_target
    on_host, on_device = MODULE.xla_handlers(_load, nvidia.function("cuCtxGetDevice"))
    register(_TARGET, on_host, platform="cpu")
    register(_TARGET, on_device, platform="CUDA")
    return True


def _load(name: str) -> None:
    """Load the kernel of a program's cast on the current device. KeyError for a program that came from elsewhere."""
    device = gpu.driver.driver().current()
    MODULE.serve(name, gpu.driver.kernel(CastSpec(_RULES[name]), device))
