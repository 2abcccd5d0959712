# SPDX-License-Identifier: Apache-2.0
"""What calls leave behind in `sanitized_plans.py`: references and memory, and how often the module served them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


def refused(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    """A call with arguments of which some may be wrong: it raises, or finds that it may not."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        function(*arguments, **keywords)


def counts() -> None:
    """References of arguments, and memory, after many calls."""
    import gpucast
    from bench import idle_cuda
    from gpucast.core.extension import MODULE
    from gpucast.mixed import fake_cast

    x, seed = np.ones((32, 64), np.float32), 2**63 + 1
    scale, amax = 0.37, 3.25
    allocated = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
    allocated.restype = ctypes.c_size_t
    q, n, y = gpucast.quantize(x, "mxfp8e4m3"), gpucast.quantize(x, "nvfp4"), np.zeros((32, 64), np.float32)
    packed, ends = gpucast.PackedArray.pack(gpucast.cast(x, "FLOAT4E2M1")), np.array([5, 32], np.int32)
    g = gpucast.quantize_grouped(x, ends, "nvfp4", scale=scale)
    with idle_cuda.idle(allocate=idle_cuda.fresh):
        there, end = idle_cuda.array((128, 256), np.float32), idle_cuda.array((2,), np.int32)
        there_q = gpucast.quantize(there, "mxfp8e4m3")
        calls: tuple[Callable[[], Any], ...] = (
            lambda: gpucast.quantize(x, "mxfp8e4m3"),
            lambda: gpucast.quantize(x, "mxfp8e4m3", out=q),
            lambda: gpucast.quantize(x, "mxfp8e4m3", rounding="stochastic", seed=seed, out=q),
            lambda: gpucast.quantize(x, "mxfp8e4m3", transpose="both"),
            lambda: gpucast.quantize(x, "mxfp8e4m3", hadamard=32),
            lambda: gpucast.quantize(x, "nvfp4", scale=scale, out=n),
            lambda: gpucast.quantize(x, "nvfp4", amax=amax),
            lambda: gpucast.dequantize(q, out=y),
            lambda: gpucast.dequantize(n),
            lambda: gpucast.hadamard(x, 32, out=y),
            lambda: fake_cast(x, "FLOAT8E4M3FN", out=y),
            lambda: gpucast.quantize_grouped(x, ends, "mxfp8e4m3"),
            lambda: gpucast.quantize_grouped(x, ends, "nvfp4", scale=scale, out=g),
            lambda: gpucast.cast_grouped(x, ends, "FLOAT8E4M3FN", scale=scale, rounding="stochastic", seed=seed),
            lambda: gpucast.cast(packed, "FLOAT16"),
            lambda: gpucast.cast(packed, "UINT4", scale=scale),
            lambda: gpucast.cast(packed, "FLOAT", out=y),
            lambda: gpucast.quantize(there, "mxfp8e4m3", out=there_q),
            lambda: gpucast.quantize(there, "mxfp8e4m3"),
            lambda: gpucast.dequantize(there_q),
            lambda: gpucast.hadamard(there, 32),
            lambda: gpucast.quantize_grouped(there, end, "mxfp8e4m3"),
            lambda: refused(MODULE.quantize, b"", None, x, y, y, None, None, scale, amax, seed, 0),
            lambda: refused(MODULE.repeat, None, [x], [seed], seed, 0, 1.0),
            lambda: refused(
                MODULE.program, ((print, 1, b"8bytes..", ((0, seed, 0),)),), ((type(x), y, x, 1, 2),), 1, (), q
            ),
            lambda: refused(MODULE.program, (), ((type(x), y, x, 1, 2), (y, x)), 1, (), q),
        )
        held: tuple[Any, ...] = (x, y, q, n, seed, scale, amax, q.data, q.scales, n.scales, packed, packed.data, ends)
        held = (*held, g, there, end, there_q, np.ndarray, type(there), print)
        for number, call in enumerate(calls):
            call()
            call()
            gc.collect()
            before = [sys.getrefcount(one) for one in held]
            blocks, size = sys.getallocatedblocks(), allocated()
            for _ in range(1000):
                call()
            gc.collect()
            assert [sys.getrefcount(one) for one in held] == before, number
            # Less than a fifth of a block, and 16 bytes, of each call.
            assert sys.getallocatedblocks() - blocks < 200 and allocated() - size < 16000, number


def counted(module: Any) -> dict[str, int]:
    """How often the module's functions did all that was asked, and how many plans it got of each kind, from now on."""
    found = dict.fromkeys(("quantize", "transform", "group", "repeat", "quantized", "dequantized"), 0)

    def count(
        function: Callable[..., Any], name_of: Callable[..., str], did: Callable[[Any], bool]
    ) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            done = function(*arguments)
            name = name_of(*arguments)
            if name in found:
                found[name] += did(done)
            return done

        return run

    for name in ("quantize", "transform", "group", "repeat"):
        setattr(
            module,
            name,
            count(getattr(module, name), lambda *_, name=name: name, lambda done: done not in (None, False)),
        )
    module.plan = count(module.plan, lambda kind, *_: kind, lambda plan: plan is not None)
    return found
