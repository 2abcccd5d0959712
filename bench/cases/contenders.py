# SPDX-License-Identifier: Apache-2.0
"""What is measured: gpucast and its rivals, as far as their packages can be imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

import gpucast
from bench.cases.buffers import Sets
from bench.timing.machine import ALIGNMENT, Copy, Machine, NDArray
from gpucast.arrays.bitpacking import unpack_codes
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DType

Run = Callable[[int], Any]

#: The prefix of the names of our own contenders, and the full name of the one that writes to `out`.
OURS = "gpucast"
#: Yardsticks, which are no rivals: a copy of as many bytes, and one that reads and writes them in the cast's ratio.
COPY, SAME_RATIO = "copy kernel", "copy of the same ratio"
#: The vectors that a thread of the copy kernel has in flight.
UNROLLS = (1, 2, 4)


class Contender:
    """An implementation of casts, for NumPy-like arrays on the machine's stream unless a class says otherwise."""

    name: ClassVar[str]
    #: Whether its results are new arrays.
    allocates = False
    #: Whether it works on the machine's stream, so that events there measure its time.
    streamed = True

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def supports(self, src: DType, dst: DType) -> bool:
        """Whether it supports the pair."""
        return True

    def prepare(self, sets: Sets) -> Run:
        """The function that casts the i-th set and returns the result. May raise any error of its library."""
        raise NotImplementedError

    def wait(self, result: Any) -> None:
        """Wait until a result is complete."""
        self.machine.synchronize()

    def codes(self, result: Any, dst: DType, start: int, stop: int) -> NDArray:
        """Some codes of a result in row-major order, one element each, on the host; `start` is a multiple of 8."""
        if isinstance(result, PackedArray):
            data = self.machine.download(result.data[start * dst.bits // 8 : dst.nbytes(stop)])
            return np.asarray(unpack_codes(data, dst.bits, stop - start))
        return self.machine.download(result.view(dst.code_numpy).reshape(-1)[start:stop])


class Ours(Contender):
    """`gpucast.cast` into `out`."""

    name = OURS

    def prepare(self, sets: Sets) -> Run:
        dst, xs, outs = sets.dst, sets.source_arrays(), sets.out_arrays()
        return lambda i: gpucast.cast(xs[i], dst, out=outs[i])


class OursAllocating(Contender):
    """`gpucast.cast` with a new result."""

    name = f"{OURS} allocating"
    allocates = True

    def prepare(self, sets: Sets) -> Run:
        dst, xs = sets.dst, sets.source_arrays()
        return lambda i: gpucast.cast(xs[i], dst)


def copy_name(unroll: int) -> str:
    """What rows of a copy kernel with so many vectors in flight are called."""
    return f"{COPY}, {unroll} x 16 bytes"


def copies(machine: Machine, count: int, read: float, write: float, copy: Copy) -> Run:
    """Copies of so many bytes in `count` pairs of arrays of their own, which rotate as the sets of a cast do."""
    # Whole vectors.
    sides = [max(1, int(size) // 16) * 16 for size in (read, write)]
    places = [-(-size // ALIGNMENT) * ALIGNMENT for size in sides]
    if sum(places) * count > machine.free_bytes():
        raise MemoryError(f"{sum(places) * count:,} bytes beside those of the casts")
    arena = machine.empty(sum(places) * count)
    # Not zeros, which may be quicker to move.
    machine.fill(arena, 0x5A)
    pairs = []
    for i in range(count):
        src = arena[i * sum(places) :]
        pairs.append((src[places[0] :][: sides[1]], src[: sides[0]]))
    return lambda i: copy(*pairs[i])


def same_ratio(machine: Machine, sets: Sets) -> Run:
    """Copies that read and write as many bytes as the casts."""
    bits = sets.src.bits, sets.dst.bits
    least = np.gcd(*bits)
    # At least four vectors on the wider side, so that enough is under way.
    times = max(1, 4 * int(least) // max(bits))
    read, write = (times * side // int(least) for side in bits)
    kernel = machine.copy_kernel(read, write)
    return copies(machine, len(sets.sources), sets.n * bits[0] / 8, sets.n * bits[1] / 8, kernel)


class CupyAstype(Contender):
    """``x.astype(dtype)`` of CuPy."""

    name = "CuPy astype"
    allocates = True

    def __init__(self, machine: Machine) -> None:
        import cupy

        super().__init__(machine)
        self.cupy = cupy

    def supports(self, src: DType, dst: DType) -> bool:
        return {src.numpy_name, dst.numpy_name} <= CUPY_TYPES

    def prepare(self, sets: Sets) -> Run:
        kind, xs = sets.dst.numpy, sets.source_arrays()
        return lambda i: xs[i].astype(kind)


class CupyCopyto(CupyAstype):
    """``cupy.copyto(out, x)``: the same kernel as ``out[...] = x``."""

    name = "CuPy copyto"
    allocates = False

    def prepare(self, sets: Sets) -> Run:
        copyto, xs, outs = self.cupy.copyto, sets.source_arrays(), sets.out_arrays()

        def run(i: int) -> Any:
            copyto(outs[i], xs[i], casting="unsafe")
            return outs[i]

        return run


#: The types that CuPy casts. Arrays of other types it can hold at best, with ml_dtypes dtypes.
CUPY_TYPES = {"bool", "float16", "float32", "float64", "bfloat16"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class TorchTo(Contender):
    """``x.to(dtype, copy=True)`` of PyTorch, on the machine's stream."""

    name = "torch .to"
    allocates = True

    def __init__(self, machine: Machine) -> None:
        import torch

        super().__init__(machine)
        self.torch = torch
        if not torch.cuda.is_available():
            raise ImportError("torch cannot use the GPU")
        torch.cuda.set_stream(torch.cuda.ExternalStream(machine.stream))

    def supports(self, src: DType, dst: DType) -> bool:
        return all(not dtype.packed and hasattr(self.torch, dtype.numpy_name) for dtype in (src, dst))

    def tensors(self, sets: Sets) -> list[Any]:
        """The sources over the same memory."""
        return [sets.layout.view(self.flat(data, sets.src)) for data in sets.sources]

    def flat(self, data: Any, dtype: DType) -> Any:
        """A flat tensor over the memory of bytes."""
        return self.torch.as_tensor(data, device="cuda").view(getattr(self.torch, dtype.numpy_name))

    def prepare(self, sets: Sets) -> Run:
        kind, xs = getattr(self.torch, sets.dst.numpy_name), self.tensors(sets)
        return lambda i: xs[i].to(kind, copy=True)

    def codes(self, result: Any, dst: DType, start: int, stop: int) -> NDArray:
        data = result.contiguous().reshape(-1)[start:stop].view(self.torch.uint8).cpu().numpy()
        return np.asarray(data).view(dst.code_numpy)


class TorchCopy(TorchTo):
    """``out.copy_(x)`` of PyTorch."""

    name = "torch copy_"
    allocates = False

    def prepare(self, sets: Sets) -> Run:
        xs, shape = self.tensors(sets), sets.layout.shape(sets.n)
        copies = [self.flat(data, sets.dst).reshape(shape).copy_ for data in sets.outs]
        return lambda i: copies[i](xs[i])


class JaxJit(Contender):
    """``jax.jit`` of ``x.astype(dtype)``. It runs on a stream of its own, so that the host's clock times it."""

    name = "jax.jit"
    allocates = True
    streamed = False

    def __init__(self, machine: Machine) -> None:
        # Otherwise XLA takes most of the memory when it starts.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        super().__init__(machine)
        # JAX is only partly typed.
        self.jax: Any = jax
        self.jax.config.update("jax_enable_x64", True)
        if jax.default_backend() != "gpu":
            raise ImportError("jax cannot use the GPU")

    def supports(self, src: DType, dst: DType) -> bool:
        return all(not dtype.packed and hasattr(self.jax.numpy, _jax_name(dtype)) for dtype in (src, dst))

    def arrays(self, sets: Sets) -> list[Any]:
        """Copies of the sources, because DLPack does not support every type."""
        jax, codes, view = self.jax, sets.src.code_numpy, sets.layout.view
        kind = getattr(jax.numpy, _jax_name(sets.src))
        self.machine.synchronize()
        made = (jax.dlpack.from_dlpack(data.view(codes)) for data in sets.sources)
        return [
            view(flat != 0 if sets.src.family == "bool" else jax.lax.bitcast_convert_type(flat, kind)) for flat in made
        ]

    def prepare(self, sets: Sets) -> Run:
        xs, kind = self.arrays(sets), getattr(self.jax.numpy, _jax_name(sets.dst))
        compiled = self.jax.jit(lambda x: x.astype(kind))
        return lambda i: compiled(xs[i])

    def wait(self, result: Any) -> None:
        self.jax.block_until_ready(result)

    def codes(self, result: Any, dst: DType, start: int, stop: int) -> NDArray:
        return np.asarray(result.reshape(-1)[start:stop]).view(dst.code_numpy)


def _jax_name(dtype: DType) -> str:
    return "bool_" if dtype.family == "bool" else dtype.numpy_name


#: Beside casts of CuPy's arrays; what JAX has is measured among what users write.
RIVALS: tuple[type[Contender], ...] = (CupyAstype, CupyCopyto, TorchTo, TorchCopy)


def contenders(machine: Machine) -> list[Contender]:
    """Our contenders, then the rivals whose packages are installed. One that fails to start is told on stderr."""
    found: list[Contender] = [Ours(machine), OursAllocating(machine)]
    for kind in RIVALS:
        try:
            found.append(kind(machine))
        except ImportError:  # noqa: PERF203 (a handful of packages)
            continue
        except Exception as error:
            print(f"bench: {kind.__name__} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return found
