# SPDX-License-Identifier: Apache-2.0
"""The engine of a device: its memory, copies to and from it, and casts of CuPy arrays (with the ml_dtypes dtype for
types that CuPy lacks) and PackedArrays, with their plans."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.arrays.array import Array, result_like
from gpucast.arrays.libraries import Lent, Library
from gpucast.arrays.overlap import are_disjoint
from gpucast.arrays.packed import PackedArray, device_index
from gpucast.casting import plans
from gpucast.casting.cuda_launches import launch_of, launches, strided_layout
from gpucast.casting.engine import Call, Engine, Lengths
from gpucast.casting.plans import Kernels
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import EMPTY
from gpucast.core.rule import CastRule, resolve
from gpucast.kernel import ON_NEW_DRIVER, devices, driver, streams
from gpucast.kernel.cast_kernel import Shape, plain_kernel
from gpucast.kernel.fused_kernel import PLAIN, FusedOps, cast_kernel
from gpucast.kernel.kernel import Kernel
from gpucast.kernel.recording import THREAD

_BYTE = np.dtype(np.uint8)


# ---- memory ----


def new(shape: tuple[int, ...], kind: DType) -> Any:
    """An array without set values on the current device: packed, or tagged with NumPy's dtype."""
    if not kind.packed:
        return driver.empty(shape, kind.numpy)
    return packed(driver.empty((kind.nbytes(math.prod(shape)),), _BYTE), kind, shape)


def packed(data: Any, kind: DType, shape: tuple[int, ...]) -> PackedArray:
    """A PackedArray past __init__, whose checks take longer than a small cast."""
    array = object.__new__(PackedArray)
    array.data, array.dtype, array.shape = data, kind, shape
    return array


def new_strided(shape: tuple[int, ...], strides: tuple[int, ...], kind: DType) -> Any:
    """The same for whole bytes, without gaps, with the axes in the order in memory that `strides` have ("K")."""
    dtype = kind.numpy
    return driver.empty(shape, dtype, _strides_like(shape, strides, dtype.itemsize))


@lru_cache(maxsize=1024)
def _strides_like(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides of an array without gaps whose axes have the same order in memory as another array's."""
    dense = [0] * len(shape)
    slowest_first = sorted(range(len(shape)), key=lambda axis: -abs(strides[axis]))
    for axis in slowest_first[::-1]:
        dense[axis] = itemsize
        itemsize *= shape[axis]
    return tuple(dense)


def empty_like(source: Array, kind: DType, caller: str) -> Array:
    """Memory on the current device for a cast of `source`: in the order of its memory, row-major where a side is
    packed. Errors as for `check_allocation`."""
    check_allocation(caller)
    if kind.packed or source.strides is None or source.contiguous:
        return result_like(source, new(source.shape, kind), kind)
    return result_like(source, new_strided(source.shape, source.strides, kind), kind)


def check_allocation(caller: str, more: str = "") -> None:
    """RuntimeError while a CUDA graph is captured from the current stream."""
    if driver.driver().capturing():
        raise RuntimeError(
            f"{caller}: a CUDA graph is being captured, and memory cannot be allocated then; pass out={more}"
        )


def is_contiguous(x: Any) -> bool:
    """`Array.contiguous` of an array on a device, for callers that need nothing else of it."""
    return isinstance(x, PackedArray) or bool(x._c_contiguous)


def is_aligned(x: Any, alignment: int = 0) -> bool:
    """Whether an array on a device begins at a multiple of so many bytes; 0: of those of an element, which are the
    least that a kernel accesses at a time unless it says otherwise. Every kernel's arrays are judged here."""
    if not alignment:
        alignment = 1 if isinstance(x, PackedArray) else x.itemsize
    return address(x) % alignment == 0


def address(x: Any) -> int:
    """`Array.address` of an array on a device, for callers that need nothing else of it."""
    return int((x.data if isinstance(x, PackedArray) else x).data.ptr)


# ---- copies over the bus, and from device to device ----


def to_host(x: Any) -> Any:
    """A copy in host memory: NumPy, with ml_dtypes where NumPy lacks the type, or a PackedArray."""
    driver.moves()
    cuda = driver.driver()
    with cuda.on(_index(x)):
        if isinstance(x, PackedArray):
            return PackedArray(cuda.to_host(x.data), x.dtype, x.shape)
        if not x.flags.c_contiguous:
            x = _copy(x)
        kind = dtype(x.dtype)
        return cuda.to_host(x.view(kind.code_numpy)).view(kind.numpy).reshape(x.shape)


def to_device(x: Any, device: int) -> Any:
    """A copy on a device of a host array or of an array on another device."""
    driver.moves()
    cuda = driver.driver()
    if isinstance(x, PackedArray):
        return PackedArray(to_device(x.data, device), x.dtype, x.shape)
    if not isinstance(x, np.ndarray) and not x.flags.c_contiguous:
        with cuda.on(_index(x)):
            x = _copy(x)
    kind = dtype(x.dtype)
    if isinstance(x, np.ndarray):
        codes = np.ascontiguousarray(x, dtype=kind.numpy).reshape(-1).view(kind.code_numpy)
        with cuda.on(device):
            return cuda.to_device(codes).view(kind.numpy).reshape(x.shape)
    source = _index(x)
    with cuda.on(source):
        written = cuda.stream()
    with cuda.on(device):
        # The copy waits for x, and what frees or changes x waits for the copy.
        cuda.follow(written, source)
        copy = cuda.to_device(x.view(kind.code_numpy))
        copied = cuda.stream()
    with cuda.on(source):
        cuda.follow(copied, device)
    return copy.view(kind.numpy).reshape(x.shape)


def _copy(x: Any) -> Any:
    """A C-contiguous copy on the same device. CuPy's own copy refuses dtypes that it does not know."""
    # Types below one byte lie one element per byte here: as plain bytes they stay so.
    kind = dtype("UINT8") if dtype(x.dtype).packed else dtype(x.dtype)
    copy = new(x.shape, kind)
    if x.size:
        launch_of(Call("copy", Array.of(x.view(kind.numpy), kind), resolve(kind, kind), target=Array.of(copy, kind)))()
    return copy.view(x.dtype)


def _index(x: Any) -> int:
    index = device_index(x)
    assert index is not None, "only arrays on a device come here"
    return index


# ---- memory that calls keep ----

#: Bytes of a cell: of a sector of its own, so that no other memory is in the way of its atomic operations.
_CELL_BYTES = 32
#: The key of a cell among the memory of a call.
_CELL = "cell"
#: The cells of calls whose memory is not kept, by device, stream and thread: work of one stream never overlaps, and
#: CUDA's stream of each thread has one number in all of them. CuPy's pool of memory has the same rule.
_CELLS: dict[tuple[int, int, int], Any] = {}
ON_NEW_DRIVER.append(_CELLS.clear)
#: FLOATs that calls were given as numbers, which no call writes, by the same and their values; and the most of them.
_NUMBERS: dict[tuple[int, int, int], dict[float, Any]] = {}
_MOST_NUMBERS = 256
#: By address those that CUDA graphs read, whenever they are launched.
_CAPTURED: dict[int, Any] = {}
ON_NEW_DRIVER.extend((_NUMBERS.clear, _CAPTURED.clear))


class Workspace:
    """The memory of a call on a device apart from its results, by name. A result keeps its workspace (`kept`), so a
    call that writes it again allocates nothing and can be captured in a CUDA graph.
    """

    def __init__(self, caller: str, device: int, *, kept: bool = False) -> None:
        self._caller, self._device, self._kept = caller, device, kept
        self._arrays: dict[tuple[str, tuple[int, ...], DType], Any] = {}
        self._cell: Any = None

    def array(self, name: str, shape: tuple[int, ...], kind: DType) -> Any:
        """An array on the device, whichever is current. RuntimeError if it would have to be allocated in a capture."""
        key = (name, shape, kind)
        if key not in self._arrays:
            self.check_capture()
            with driver.driver().on(self._device):
                self._arrays[key] = new(shape, kind)
        return self._arrays[key]

    def items(self) -> Iterable[tuple[Any, Any]]:
        """The arrays that there are, by a key of each."""
        return [*self._arrays.items(), *([] if self._cell is None else [(_CELL, self._cell)])]

    def kept(self, key: Any) -> Any:
        """The array of a key of `items`; None where there is none."""
        return self._cell if key == _CELL else self._arrays.get(key)

    def cell(self) -> Any:
        """Some bytes for kernels that find zeros there and leave zeros. RuntimeError as for `array`."""
        if self._cell is None:
            with driver.driver().on(self._device):
                key = self._place()
                # What is recorded has no memory.
                own = self._kept or driver.is_dry_run()
                self._cell = None if own else _CELLS.get(key)
                if self._cell is None:
                    self.check_capture()
                    self._cell = driver.driver().to_device(np.zeros(_CELL_BYTES, np.uint8))
                    if not own:
                        _CELLS[key] = self._cell
                recording = THREAD.recording
                if recording is not None and not self._kept:
                    recording.cells.append(self._cell)
        return self._cell

    def number(self, value: float) -> Any:
        """An array of one FLOAT on the device for the current stream, which stays. RuntimeError as for `array`."""
        with driver.driver().on(self._device):
            # What is recorded has no memory.
            known = {} if driver.is_dry_run() else _NUMBERS.setdefault(self._place(), {})
            found = known.get(value)
            if found is None:
                self.check_capture()
                codes = np.array([value], np.float32).view(np.uint8)
                found = driver.driver().to_device(codes).view(np.float32).reshape(())
                if len(known) >= _MOST_NUMBERS:
                    known.clear()
                known[value] = found
            elif driver.driver().capturing():
                _CAPTURED[found.data.ptr] = found
        if THREAD.recording is not None:
            THREAD.recording.numbers.append((found, value))
        return found

    def _place(self) -> tuple[int, int, int]:
        return _place(self._device)

    def check_capture(self) -> None:
        """RuntimeError while a CUDA graph is captured."""
        with driver.driver().on(self._device):
            check_allocation(self._caller, ", and make the same call with it once before the capture")


def _place(device: int) -> tuple[int, int, int]:
    """A device, which is the current one, its stream and this thread."""
    return device, driver.driver().stream(), threading.get_ident()


def cell_address(caller: str, device: int, _: Any = None) -> int:
    """The address of `Workspace.cell` of a call on the current device whose memory is not kept."""
    found = _CELLS.get(_place(device))
    if found is None:
        found = Workspace(caller, device).cell()
    return int(found.data.ptr)


def number_address(caller: str, device: int, value: float, _: Any = None) -> int:
    """The address of `Workspace.number` of a call on the current device."""
    return int(Workspace(caller, device).number(value).data.ptr)


# ---- plans: the module launches kernels that are kept by device ----


@lru_cache(maxsize=1024)
def _plan(
    array: Any, rule: CastRule, packed: bool, fuses: bool, scaled: bool, amax: bool
) -> tuple[Any, Kernels] | None:
    """The plan for casts of arrays in one of CuPy's class `array`, packed elements or not, for each kind of kernel, and
    its kernels; None where there is none."""
    works = plans.works(rule, fuses, scaled)
    if works is None:
        return None
    kernels = Kernels.of(fuses)
    bits = rule.src.bits if packed else 0, rule.dst.bits if rule.dst.packed else 0
    run = None if fuses else _strided(array, packed, rule)
    made = plans.make("cupy", run, _empty(rule.dst), rule, works, *kernels, PackedArray, rule.dst, bits)
    return made, kernels


# The kernels are those of the driver with which they were loaded.
ON_NEW_DRIVER.append(_plan.cache_clear)


# For any call that these cannot serve, and for a wrong one, they do nothing and return None; then the checked path
# serves the call, or raises.


def _empty(kind: DType) -> Callable[[Any], Any]:
    """``empty(x)``: a new row-major result for x, which is on the current device; None while a graph is captured."""
    own, tag = driver.driver(), kind.numpy
    capturing, array = own.capturing, own.empty
    if kind.packed:
        return lambda x: None if capturing() else new(x.shape, kind)
    return lambda x: None if capturing() else array(x.shape, tag)


def _strided(array: Any, from_packed: bool, rule: CastRule) -> Callable[..., Any]:
    """``run(x, ..., out)`` of the plain casts of arrays of a class, or of packed elements in such, that are not all
    row-major."""
    own = driver.driver()
    current, capturing, kind, tag = own.current, own.capturing, rule.dst, rule.dst.numpy
    to_packed = rule.dst.packed
    unpacked = rule.src.packed and not from_packed
    itemsizes = (1 if from_packed else rule.src.numpy.itemsize, 1 if to_packed else tag.itemsize)
    transposes = not (from_packed or to_packed)
    loaded: dict[tuple[Shape, int], tuple[Kernel, driver.Launch]] = {}

    def run(x: Any, seed: Any, offset: Any, scale: Any, amax: Any, out: Any) -> Any:
        src = x.data if from_packed else x
        if type(src) is not array or not x.size:
            return None
        device, flat = src.data.device_id, src._c_contiguous
        if current() != device:
            return None
        if out is None:
            if flat or capturing():
                return None
            out = new(x.shape, kind) if to_packed else new_strided(x.shape, x.strides, kind)
            dst = out.data if to_packed else out
        else:
            # To NumPy its own dtype equals the row, and codes of a byte each are no place for packed ones.
            if to_packed and not (type(out) is PackedArray and out.dtype is kind):
                return None
            dst = out.data if to_packed else out
            if type(dst) is not array or (flat and dst._c_contiguous) or (not to_packed and out.dtype != tag):
                return None
            if out.shape != x.shape or dst.data.device_id != device or not are_disjoint(src, dst):
                return None
        shape, dims, n = strided_layout(
            x.shape,
            None if from_packed else x.strides,
            None if to_packed else dst.strides,
            itemsizes,
            False,
            transposes,
        )
        found = loaded.get((shape, device))
        if found is None:
            kernel = plain_kernel(rule, shape, unpacked)
            found = loaded[shape, device] = kernel, driver.ready(kernel, device)
        kernel, launch = found
        target, last = dst.data.ptr, b"" if dims is None else dims.packed
        launch(kernel.blocks(n, target), driver.array_arguments(src.data.ptr, 0, target, n) + last)
        return out

    return run


# ---- the engine ----


class CudaEngine(Engine):
    """Arrays of CuPy, and PackedArrays over them. RuntimeError for work that a CUDA graph cannot capture."""

    device: int
    packs = True

    def __init__(self, device: int) -> None:
        self.device = device

    def empty(self, shape: tuple[int, ...], kind: DType, packs: bool = False) -> Any:
        with driver.driver().on(self.device):
            check_allocation("empty")
            return new(shape, kind)

    def view(
        self, address: int, shape: Lengths, strides: Lengths | None, kind: DType, owner: object, readonly: bool = False
    ) -> Any:
        import cupy

        code = kind.code_numpy
        nbytes = math.prod(shape) * code.itemsize
        # An array without elements reaches nowhere, whatever its strides are.
        if strides is not None and nbytes:
            nbytes = code.itemsize + sum(step * (n - 1) for step, n in zip(strides, shape, strict=True) if step > 0)
        memory = cupy.cuda.UnownedMemory(address, nbytes, owner, self.device)
        return cupy.ndarray(shape, code, cupy.cuda.MemoryPointer(memory, 0), strides).view(kind.numpy)

    def take(self, x: Any) -> Any:
        return x if device_index(x) == self.device else to_device(x, self.device)

    def received(self, y: Array, packed: bool) -> Array:
        x = y.array if y.packed or not y.dtype.packed or y.device is not None else PackedArray.pack(y.array)
        return Array.of(self.take(x), y.dtype)

    def number(self, x: Any) -> Any:
        return x

    def reads(self, x: Any) -> bool:
        return is_aligned(x)

    def run(self, calls: Sequence[Call], library: Library | None = None) -> None:
        cuda = driver.usable(calls[0].caller)
        stream = None if library is None else library.stream(self.device)
        with cuda.on(self.device) if stream is None else cuda.using(stream, self.device):
            for run in self.prepare(calls):
                run()

    def prepare(self, calls: Sequence[Call]) -> list[Callable[[], None]]:
        live: list[Call] = []
        for call in calls:
            if call.target is None:
                call.target = empty_like(call.source, call.rule.dst, call.caller)
            if call.source.size:
                live.append(call)
        return launches(live, self.device) if len(live) > 1 else list(map(launch_of, live))

    def is_unchanged(self, call: Call) -> bool:
        # To look at bits there would mean to wait for the device.
        kind = call.source.dtype
        return kind is call.rule.dst and not (kind.packed or kind.family == "bool")

    def plan(self, call: Call) -> Any:
        import cupy

        source, rule = call.source, call.rule
        array: Any = type(source.data)
        if array is not cupy.ndarray or type(source.array) not in (array, PackedArray):
            return None
        fuses, ops = call.fuse is not EMPTY, PLAIN if call.fuse is EMPTY else FusedOps.of(call.fuse)
        known = _plan(array, rule, source.packed, fuses, ops.scaling != "none", ops.amax)
        if known is None:
            return None
        plan, kernels = known
        self.add_kernel(kernels, rule, ops, rule.src.packed and not source.packed)
        return plan

    def add_kernel(self, kernels: Kernels, rule: CastRule, ops: FusedOps, unpacked: bool = False) -> None:
        loaded = driver.loaded(cast_kernel(rule, "contiguous", unpacked, ops), self.device)
        if loaded is not None:
            by_double, by_float = kernels
            (by_double if ops.scaling == "wide" or by_float is None else by_float)[self.device] = loaded

    def require(self, caller: str) -> None:
        devices.require(caller)

    def workspace(self, caller: str) -> Any:
        return Workspace(caller, self.device, kept=True)

    def stream(self, library: Library | None) -> int:
        stream = None if library is None else library.stream(self.device)
        if stream is not None:
            return stream
        with driver.driver().on(self.device):
            return driver.driver().stream()

    @contextlib.contextmanager
    def using(self, stream: int | None, owners: Iterable[Lent | None] = ()) -> Iterator[None]:
        assert stream is not None, "each device has one"
        with streams.on({self.device: stream}, owners), driver.driver().on(self.device):
            yield
