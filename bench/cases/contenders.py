# SPDX-License-Identifier: Apache-2.0
"""What is measured: gpucast and its rivals, as far as their packages can be imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from bench.cases.buffers import Sets, TooLarge, moved_bytes
from bench.timing.machine import ALIGNMENT, Array, Machine
from gpucast.arrays.bitpacking import unpack_codes
from gpucast.arrays.packed import PackedArray
from gpucast.casting.cast import cast
from gpucast.core.dtypes import DType

Run = Callable[[int], Any]

#: The prefix of the names of our own contenders, and the full name of the one that writes to `out`.
OURS = "gpucast"
#: A copy of as many bytes by our own kernel, measured in turn with the casts as their yardstick. It is no rival.
COPY = "copy kernel"


class Contender(Protocol):
    """An implementation of casts."""

    def __init__(self, machine: Machine) -> None: ...

    name: str
    #: Whether its results are new arrays.
    allocates: bool
    #: Whether it compiles for seconds before the first cast of a pair.
    heavy: bool
    #: Whether it launches on the machine's stream, so that events there measure its time and its calls can be captured.
    streamed: bool

    def supports(self, src: DType, dst: DType) -> bool:
        """Whether it supports the pair on its machine."""

    def prepare(self, sets: Sets) -> Run:
        """The function that casts the i-th set and returns the result. May raise any error of its library."""

    def wait(self, result: Any) -> None:
        """Wait until a result is complete."""

    def codes(self, result: Any, dst: DType, count: int) -> Array:
        """The first codes of a result, one element each, on the host."""


class _Streamed:
    """The base of contenders that cast NumPy or CuPy arrays on the machine's stream."""

    heavy = False
    streamed = True

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def wait(self, result: Any) -> None:
        self.machine.synchronize()

    def codes(self, result: Any, dst: DType, count: int) -> Array:
        return array_codes(self.machine, result, dst, count)


class Ours(_Streamed):
    """`gpucast.cast`, into `out` or allocating."""

    def __init__(self, machine: Machine, allocates: bool = False) -> None:
        super().__init__(machine)
        self.allocates = allocates
        self.name = f"{OURS} allocating" if allocates else OURS

    def supports(self, src: DType, dst: DType) -> bool:
        # On the host types below one byte take a byte per element, and need other arrays than the packed ones here.
        return self.machine.stream is not None or not (src.packed or dst.packed)

    def prepare(self, sets: Sets) -> Run:
        dst, xs = sets.dst, sets.source_arrays()
        if self.allocates:
            return lambda i: cast(xs[i], dst)
        outs = sets.out_arrays()
        return lambda i: cast(xs[i], dst, out=outs[i])


class CopyKernel(_Streamed):
    """Reads half as many bytes as a cast moves and writes as many, in its own arrays, which rotate like the casts'.

    `choose` returns the copy function for a number of bytes: the quickest copy kernel at that size.
    """

    name = COPY
    allocates = False

    def __init__(self, machine: Machine, choose: Callable[[float], Callable[[Any, Any], object]]) -> None:
        super().__init__(machine)
        self.choose = choose

    def supports(self, src: DType, dst: DType) -> bool:
        return True

    def prepare(self, sets: Sets) -> Run:
        moved = moved_bytes(sets.src, sets.dst, sets.n)
        # Whole vectors.
        half, count = int(moved) // 32 * 16, len(sets.sources)
        if not half:
            raise ValueError(f"{moved:g} bytes are too few for the copy kernel")
        step = -(-half // ALIGNMENT) * ALIGNMENT
        if 2 * step * count > self.machine.free_bytes():
            raise TooLarge(f"{2 * step * count:,} bytes beside those of the casts")
        arena = self.machine.empty(2 * step * count)
        # Not zeros, which may be quicker to move.
        self.machine.fill(arena, 0x5A)
        sides = [(arena[2 * i * step :][:half], arena[(2 * i + 1) * step :][:half]) for i in range(count)]
        copy = self.choose(moved)
        return lambda i: copy(sides[i][1], sides[i][0])


def array_codes(machine: Machine, result: Any, dst: DType, count: int) -> Array:
    """The first codes of a NumPy or CuPy array, or of a PackedArray, in row-major order."""
    if isinstance(result, PackedArray):
        data = machine.download(result.data[: dst.nbytes(count)])
        return np.asarray(unpack_codes(data, dst.bits, count))
    return machine.download(result.view(dst.code_numpy).reshape(-1)[:count])


def _astype(sets: Sets) -> Run:
    kind, xs = sets.dst.numpy, sets.source_arrays()
    return lambda i: xs[i].astype(kind)


def _copyto(copyto: Callable[..., None], sets: Sets) -> Run:
    xs, outs = sets.source_arrays(), sets.out_arrays()

    def run(i: int) -> Any:
        copyto(outs[i], xs[i], casting="unsafe")
        return outs[i]

    return run


class NumpyAstype(_Streamed):
    """``x.astype(dtype)`` on the host."""

    name = "NumPy astype"
    allocates = True

    def supports(self, src: DType, dst: DType) -> bool:
        if src.packed or dst.packed:
            return False
        try:
            with np.errstate(all="ignore"):
                np.zeros(1, src.numpy).astype(dst.numpy)
        except TypeError:  # ml_dtypes lacks the pair.
            return False
        return True

    def prepare(self, sets: Sets) -> Run:
        return _astype(sets)


class NumpyCopyto(NumpyAstype):
    """``numpy.copyto(out, x)`` on the host."""

    name = "NumPy copyto"
    allocates = False

    def prepare(self, sets: Sets) -> Run:
        return _copyto(np.copyto, sets)


class CupyAstype(_Streamed):
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
        return _astype(sets)


class CupyCopyto(CupyAstype):
    """``cupy.copyto(out, x)``: the same kernel as ``out[...] = x``."""

    name = "CuPy copyto"
    allocates = False

    def prepare(self, sets: Sets) -> Run:
        return _copyto(self.cupy.copyto, sets)


#: The types that CuPy casts. Arrays of other types it can hold at best, with ml_dtypes dtypes.
CUPY_TYPES = {"bool", "float16", "float32", "float64", "bfloat16"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class TorchTo(_Streamed):
    """``x.to(dtype, copy=True)`` of PyTorch, on the machine's device and stream."""

    name = "torch .to"
    allocates = True

    def __init__(self, machine: Machine) -> None:
        import torch

        super().__init__(machine)
        self.torch = torch
        if machine.stream is not None:
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
        device = "cpu" if self.machine.stream is None else "cuda"
        return self.torch.as_tensor(data, device=device).view(getattr(self.torch, dtype.numpy_name))

    def prepare(self, sets: Sets) -> Run:
        kind, xs = getattr(self.torch, sets.dst.numpy_name), self.tensors(sets)
        return lambda i: xs[i].to(kind, copy=True)

    def codes(self, result: Any, dst: DType, count: int) -> Array:
        data = result.contiguous().reshape(-1)[:count].view(self.torch.uint8).cpu().numpy()
        return np.asarray(data).view(dst.code_numpy)


class TorchCopy(TorchTo):
    """``out.copy_(x)`` of PyTorch."""

    name = "torch copy_"
    allocates = False

    def prepare(self, sets: Sets) -> Run:
        xs, shape = self.tensors(sets), sets.layout.shape(sets.n)
        copies = [self.flat(data, sets.dst).reshape(shape).copy_ for data in sets.outs]
        return lambda i: copies[i](xs[i])


def contenders(machine: Machine) -> list[Contender]:
    """Our contenders, then the rivals that can be imported."""
    kinds = (NumpyAstype, NumpyCopyto) if machine.stream is None else (CupyAstype, CupyCopyto)
    return [Ours(machine), Ours(machine, allocates=True), *available([*kinds, TorchTo, TorchCopy], machine)]


def available(kinds: Sequence[type[Contender]], machine: Machine) -> list[Contender]:
    """The rivals whose packages are installed. One that is installed but fails to start is reported on stderr."""
    found = []
    for kind in kinds:
        try:
            found.append(kind(machine))
        except ImportError:  # noqa: PERF203 (a handful of packages)
            continue
        except Exception as error:
            print(f"bench: {kind.__name__} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return found
