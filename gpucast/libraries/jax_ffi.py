# SPDX-License-Identifier: Apache-2.0
"""Casts within XLA's programs, by handlers of the extension module, on the CPU and on XLA's own CUDA stream. They call
no Python and do not wait."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from gpucast import casting
from gpucast import kernel as kernels
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.core.fuse import Fuse, Random, Scaling, fuse_of
from gpucast.core.rule import CastRule
from gpucast.host import loops
from gpucast.kernel import nvidia
from gpucast.kernel.fused_kernel import FUSED, FusedOps, cast_kernel

_TARGET = "gpucast_cast"
#: A number of each kind, where that of a program is an operand.
_EXAMPLES: dict[Scaling, float] = {"narrow": 1.0, "wide": 0.1}


class ProgramCast(NamedTuple):
    """A cast inside a compiled program. It is stored there as text that any process can execute."""

    #: With a scale that of `gpucast.core.rule.resolve`.
    rule: CastRule
    #: A number; for an operand, which the program has beside x, its kind.
    scale: float | Scaling | None = None
    random: Random | None = None

    @property
    def vmap_method(self) -> str:
        """How JAX does a batch. Random words go by the places of elements, and operands are numbers of one cast: there
        each part is cast as if it were alone."""
        return "sequential" if isinstance(self.scale, str) or self.random is not None else "broadcast_all"

    def text(self) -> str:
        rule = self.rule
        more = rule.overflow, rule.infinity_is_nan, rule.rounding, rule.round_mode
        return json.dumps([[rule.src.name, rule.dst.name, *more], self.scale, self.random])

    @classmethod
    def parse(cls, text: str) -> ProgramCast:
        (src, dst, *more), scale, random = json.loads(text)
        return cls(CastRule(dtype(src), dtype(dst), *more), scale, None if random is None else Random(*random))

    def inputs(self) -> Fuse:
        """For the host's loops and the kernels; of an operand with another number."""
        scale = _EXAMPLES[self.scale] if isinstance(self.scale, str) else self.scale
        return fuse_of(scale, random=self.random)


def held_as(kind: DType) -> np.dtype[Any]:
    """The dtype of the codes that go in and out of a handler: of packed types and floats whole bytes."""
    return kind.code_numpy if kind.is_float or kind.packed else kind.numpy


def can_cast(wanted: ProgramCast) -> bool:
    """Whether there is a handler for a cast on the devices that JAX uses by default."""
    if not (_register() and _serve_on_host(wanted.text())):
        return False
    backend = jax.default_backend()
    return backend == "cpu" or (backend == "gpu" and kernels.driver.unavailable() is None)


def cast(wanted: ProgramCast, x: Any, *scale: Any) -> Any:
    """The cast of a traced array that `can_cast` accepts: codes in, codes out, packed types with one code per byte."""
    dst = wanted.rule.dst

    def call(shape: tuple[int, ...], method: str, *given: Any) -> Any:
        kind: Any = jax.ShapeDtypeStruct(shape, held_as(dst))  # type: ignore[no-untyped-call]
        called: Any = jax.ffi.ffi_call(_TARGET, kind, vmap_method=method)
        return called(*given, cast=wanted.text())

    def on_host(*given: Any) -> Any:
        return call(x.shape, wanted.vmap_method, *given)

    def on_device(*given: Any) -> Any:
        # A kernel packs its results.
        data = call((dst.nbytes(x.size),), "sequential", *given)
        codes = data[:, None] >> np.array(range(0, 8, dst.bits), np.uint8) & np.uint8(dst.code_mask)
        return codes.reshape(-1)[: x.size].reshape(x.shape)

    given = (x, *scale)
    return jax.lax.platform_dependent(*given, cpu=on_host, cuda=on_device) if dst.packed else on_host(*given)


@lru_cache(maxsize=1)
def _register() -> bool:
    """Give XLA the handlers, once; False without the extension module, or for a JAX without the interface."""
    if MODULE is None or not hasattr(jax, "ffi"):
        return False
    register: Any = jax.ffi.register_ffi_target
    on_host, on_device = MODULE.xla_handlers(_serve, nvidia.function("cuCtxGetDevice"))
    register(_TARGET, on_host, platform="cpu")
    register(_TARGET, on_device, platform="CUDA")
    return True


@lru_cache(maxsize=4096)
def _serve_on_host(text: str) -> bool:
    """Let the module do a cast on the host; False where it has no loop, for dtypes that came after it was built."""
    try:
        _serve(text, False)
    except LookupError:
        return False
    return True


def _serve(text: str, on_device: bool) -> None:
    """Let the module do a program's cast on the host, or on the current device."""
    wanted = ProgramCast.parse(text)
    rule, inputs = wanted.rule, wanted.inputs()
    if not on_device:
        MODULE.serve(text, None, loops.work(rule, inputs), 8)
        return
    ops = FusedOps.of(inputs)
    kernel = kernels.driver.ready(
        cast_kernel(rule, unpacked=rule.src.packed, ops=ops), kernels.driver.driver().current()
    )
    given = FUSED.pack(*casting.cuda_launches.fused_values(inputs)) if ops.fuses(rule) else b""
    MODULE.serve(text, kernel, given, min(8, rule.dst.bits))
