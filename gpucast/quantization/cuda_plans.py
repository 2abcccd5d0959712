# SPDX-License-Identifier: Apache-2.0
"""Plans of `gpucast.quantize` and `gpucast.dequantize` on devices: the launches of an earlier call, repeated.

They serve arrays of CuPy, or of a library whose adapter says where they are, on the current device, that lie as those
of that call did; `gpucast.kernel.recording` says how alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gpucast import casting, kernel
from gpucast.arrays import libraries
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.packed import PackedArray
from gpucast.casting import plans
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.kernel import ON_NEW_DRIVER
from gpucast.kernel.recording import ALIKE, Memory, Program, Recording, program
from gpucast.quantization.formats import Format

#: The most kinds of arrays of a plan.
_MOST = 256


class _Given(NamedTuple):
    """An array that a call was given."""

    kind: Any
    shape: tuple[int, ...]
    dtype: Any
    nbytes: int
    #: Its address, modulo `ALIKE`.
    alike: int


class _Part(NamedTuple):
    """A part of a new result: in the new array of that number, as an array of its own; packed ones of a dtype."""

    number: int
    as_array: Memory | None
    packed: tuple[DType, tuple[int, ...]] | None

    def of(self, made: Sequence[Any], library: str | None) -> Any:
        data = made[self.number]
        if self.as_array is not None:
            shape, kind, strides, _ = self.as_array
            data = type(data)(shape, kind, data.data, strides)
        if self.packed is not None:
            array: Any = object.__new__(PackedArray)
            array.data, (array.dtype, array.shape) = data, self.packed
            data = array
        return data if library is None else libraries.of_library(library).from_array(data)


class _Known(NamedTuple):
    """What arrays of a kind need."""

    program: Program
    device: int
    #: That of the arrays; None for CuPy.
    library: str | None
    given: tuple[_Given, ...]
    #: How many of the given arrays are read; the others are written.
    reads: int
    #: The names of a workspace's arrays, which come after the given ones, and their addresses modulo `ALIKE`.
    kept: tuple[tuple[Any, int], ...]
    #: The parts of a new result; None where there is an `out`.
    parts: tuple[_Part | None, ...] | None

    def serve(self, given: Sequence[Any], workspace: Any, seed: int, offset: int) -> list[Any] | None:
        """Repeat the call: the new parts, [] where there is an `out`; None, nothing done, where only the checked path
        can tell."""
        cuda, device = kernel.driver.driver(), self.device
        if cuda.current() != device:
            return None
        if self.library is not None:
            return self._serve_library(given, workspace, seed, offset)
        addresses = []
        for x, (kind, shape, own, _, alike) in zip(given, self.given, strict=True):
            if type(x) is not kind or x.shape != shape or x.dtype != own or not x._c_contiguous:
                return None
            memory = x.data
            if memory.device_id != device or memory.ptr % ALIKE != alike:
                return None
            addresses.append(memory.ptr)
        return self._launch(addresses, workspace, seed, offset)

    def _serve_library(self, given: Sequence[Any], workspace: Any, seed: int, offset: int) -> list[Any] | None:
        """The same for arrays of a library, on its current stream."""
        assert self.library is not None
        adapter, addresses = libraries.of_library(self.library), []
        for x, (kind, shape, own, _, alike) in zip(given, self.given, strict=True):
            # What the library lacks is packed in an array of CuPy.
            found = _placed(x, adapter) if type(x) is kind else None
            if found is None or x.shape != shape or x.dtype != own:
                return None
            device, address = found
            if device != self.device or address % ALIKE != alike:
                return None
            addresses.append(address)
        stream = adapter.stream(self.device)
        if stream is None:
            return None
        with kernel.driver.driver().using(stream, self.device):
            done = self._launch(addresses, workspace, seed, offset)
        if done is not None:
            for x in given[self.reads :]:
                adapter.written(x)
        return done

    def _launch(self, addresses: list[int], workspace: Any, seed: int, offset: int) -> list[Any] | None:
        if self.parts is not None and kernel.driver.driver().capturing():
            return None
        if self.reads < len(addresses) and not self._are_disjoint(addresses):
            return None
        for name, alike in self.kept:
            held = workspace.kept(name)
            if held is None or casting.cuda.address(held) % ALIKE != alike:
                return None
            addresses.append(casting.cuda.address(held))
        made = [kernel.driver.empty(shape, own, strides) for shape, own, strides, _ in self.program.new]
        for one, known in zip(made, self.program.new, strict=True):
            addresses.append(one.data.ptr)
            if one.data.ptr % ALIKE != known.alike:
                return None
        self.program.run(addresses, seed, offset)
        if self.parts is None:
            return []
        return [None if part is None else part.of(made, self.library) for part in self.parts]

    def _are_disjoint(self, addresses: Sequence[int]) -> bool:
        """Whether nothing that is written shares memory with another given array."""
        for i in range(self.reads, len(addresses)):
            begin, end = addresses[i], addresses[i] + self.given[i].nbytes
            for j in range(i):
                if begin < addresses[j] + self.given[j].nbytes and addresses[j] < end:
                    return False
        return True


class CudaPlan:
    """What calls keep that differ in their arrays alone, by a key of these."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], _Known] = {}

    def keep(
        self,
        key: tuple[Any, ...],
        recording: Recording,
        read: Sequence[Any],
        written: Sequence[Any],
        workspace: Any,
        result: Sequence[Any] | None,
        library: str | None,
        seed: int | None = None,
        offset: int = 0,
    ) -> bool:
        """Keep a call that can be repeated. result: the parts of a new one; None where there was an `out`."""
        given, adapter = [*read, *written], None if library is None else libraries.of_library(library)
        places = [_placed(x, adapter) for x in given]
        if None in places or (result is None and recording.made):
            return False
        held = {} if workspace is None or result is not None else dict(workspace.items())
        arrays = [(place[1], int(x.nbytes)) for place, x in zip(places, given, strict=True) if place is not None]
        kept = [(casting.cuda.address(x), int(x.nbytes)) for x in held.values()]
        found = program(recording, [*arrays, *kept], seed, offset)
        parts = None if result is None else [_part(part, recording.made, adapter) for part in result]
        if found is None or (parts is not None and parts.count(None) != sum(part is None for part in result or ())):
            return False
        if len(self.known) >= _MOST:
            self.known.clear()
        alike = [address % ALIKE for address, _ in arrays]
        self.known[key] = _Known(
            found,
            next(place[0] for place in places if place is not None),
            library,
            tuple(_Given(type(x), x.shape, x.dtype, int(x.nbytes), of) for x, of in zip(given, alike, strict=True)),
            len(read),
            tuple((name, address % ALIKE) for name, (address, _) in zip(held, kept, strict=True)),
            None if parts is None else tuple(parts),
        )
        return True


def _placed(x: Any, adapter: libraries.Library | None) -> tuple[int, int] | None:
    """The device and the address of a row-major array of CuPy, or of the adapter's library; None for any other."""
    if _is_array(x):
        return (int(x.data.device_id), int(x.data.ptr)) if x._c_contiguous else None
    return None if adapter is None else adapter.placed(x)


def _data(x: Any) -> Any:
    return x.data if isinstance(x, PackedArray) else x


def _part(part: Any, made: Sequence[Any], adapter: libraries.Library | None) -> _Part | None:
    """How a part of a new result is one of the new arrays; None for one that is none."""
    place = None if part is None else _placed(_data(part), adapter)
    if place is None:
        return None
    packed = (part.dtype, part.shape) if isinstance(part, PackedArray) else None
    for number, one in enumerate(made):
        if one.data.ptr != place[1] or one.nbytes != part.nbytes:
            continue
        data = _data(part)
        if adapter is not None and packed is None:
            # As the library gets it from an array of CuPy.
            native = adapter.take(part, "quantize")
            packed = (native.dtype, native.shape) if isinstance(native, PackedArray) else None
            data = _data(native)
        same = (one.shape, one.dtype, one.strides) == (data.shape, data.dtype, data.strides)
        return _Part(number, None if same else Memory(data.shape, data.dtype, data.strides, 0), packed)
    return None


def _parts(q: Any) -> list[Any]:
    return [q.data, q.scales, q.zero_points, q.global_scale]


def _is_array(x: Any) -> bool:
    """Whether x is an array of CuPy, and no other class of its library."""
    module = namespace(x)
    return module is not None and type(x) is module.ndarray and hasattr(x, "_c_contiguous")


# ---- quantize ----


class QuantizePlan(CudaPlan):
    """Of `gpucast.quantize`."""

    def __init__(self, quantized: Any, stochastic: bool) -> None:
        super().__init__()
        self.quantized, self.stochastic, self.plan = quantized, stochastic, plans.make("", self.run)
        #: Attributes of results but their parts, by the key of arrays.
        self.attributes: dict[tuple[Any, ...], dict[str, Any]] = {}

    @staticmethod
    def key(x: Any, scale: Any, amax: Any, out: Any) -> tuple[Any, ...]:
        """What `known` is found by."""
        given = [None if one is None else getattr(one, "shape", ()) for one in (scale, amax)]
        return x.shape, *given, out is None

    def run(self, x: Any, seed: Any, offset: Any, scale: Any, amax: Any, signs: Any, out: Any) -> Any:
        key = self.key(x, scale, amax, out)
        known = self.known.get(key)
        if known is None or signs is not None or type(offset) is not int:
            return None
        if self.stochastic:
            if type(seed) is not int or not (0 <= seed < 2**64 and 0 <= offset < 2**64):
                return None
        elif seed is not None or offset:
            return None
        given, workspace, attributes = [one for one in (x, scale, amax) if one is not None], None, self.attributes[key]
        if out is not None:
            own = getattr(out, "__dict__", {})
            if type(out) is not self.quantized or any(own[name] is not value for name, value in attributes.items()):
                return None
            given += [_data(part) for part in _parts(out) if part is not None]
            if len(given) != len(known.given):
                return None
            workspace = out.workspace("quantize") if known.kept else None
        parts = known.serve(given, workspace, seed or 0, offset)
        if parts is None or out is not None:
            return None if parts is None else out
        q = object.__new__(self.quantized)
        # Past __init__, whose checks take longer than all else here.
        vars(q).update(attributes)
        vars(q).update(zip(("data", "scales", "zero_points", "global_scale"), parts, strict=True))
        return q


@lru_cache(maxsize=1024)
def _quantize_plan(quantized: Any, stochastic: bool, *call: Any) -> QuantizePlan:
    return QuantizePlan(quantized, stochastic)


def keep_quantize(x: Any, asked: Any, keywords: tuple[Any, ...], q: Any, recording: Recording) -> Any:
    """The plan of a call that gave `q`, if there may be one."""
    axis, layout, transpose, rounding, seed, offset, scale, amax, hadamard, signs, device, out = keywords
    given = [one for one in (x, scale, amax) if one is not None]
    # Another library's arrays may be written on another stream.
    if MODULE is None or device is not None or signs is not None or any(type(one) is not type(x) for one in given):
        return None
    if transpose is not False or _placed(x, None if q.library is None else libraries.of_library(q.library)) is None:
        return None
    # A seed also gives the signs of a transform.
    if seed is not None and (rounding is None or hadamard is not None):
        return None
    if not isinstance(asked, (str, Format)) or not plans.is_lasting(axis, layout, rounding, hadamard):
        return None
    kinds: tuple[Any, ...] = type(q), rounding is not None, type(x)
    plan = _quantize_plan(*kinds, q.dtype, q.format, axis, layout, hadamard)
    parts = [_data(part) for part in _parts(q) if part is not None]
    workspace = None if out is None else q.workspace("quantize")
    key = plan.key(x, scale, amax, out)
    new = _parts(q) if out is None else None
    names = ("format", "dtype", "axis", "scale_layout", "library")
    # First, because others may find what is kept at once.
    plan.attributes[key] = {name: getattr(q, name) for name in names}
    written = [] if out is None else parts
    kept = plan.keep(key, recording, given, written, workspace, new, q.library, seed, int(offset))
    return plan.plan if kept else None


# ---- back ----


class DequantizePlan(CudaPlan):
    """Of `gpucast.dequantize`."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = plans.make("", self.run)
        #: The formats that keys name by their `id`.
        self.formats: dict[int, Format] = {}

    @staticmethod
    def key(q: Any, out: Any) -> tuple[Any, ...]:
        """What `known` is found by."""
        return id(q.format), q.axis, q.scale_layout, q.library, type(q.data), q.data.shape, out is None

    def run(self, q: Any, signs: Any, seed: Any, out: Any) -> Any:
        known = self.known.get(self.key(q, out))
        if known is None or not signs is seed is None or self.formats[id(q.format)] is not q.format:
            return None
        given, workspace = [_data(part) for part in _parts(q) if part is not None], None
        if out is not None:
            given.append(out)
            workspace = q.workspace("dequantize") if known.kept else None
        if len(given) != len(known.given):
            return None
        parts = known.serve(given, workspace, 0, 0)
        if parts is None:
            return None
        return parts[0] if out is None else out


@lru_cache(maxsize=256)
def _dequantize_plan(*call: Any) -> DequantizePlan:
    return DequantizePlan()


def keep_dequantize(q: Any, to: Any, keywords: tuple[Any, ...], y: Any, recording: Recording) -> Any:
    """The plan of a call that gave `y`, if there may be one."""
    hadamard, signs, seed, out = keywords
    parts = [_data(part) for part in _parts(q) if part is not None]
    if MODULE is None or not signs is seed is None or not plans.is_lasting(to, hadamard):
        return None
    # Another library's array may be in use on another stream.
    if libraries.library_of(y) != q.library:
        return None
    plan = _dequantize_plan(type(y), q.dtype, dtype(to), hadamard)  # type: ignore[arg-type]
    workspace = None if out is None else q.workspace("dequantize")
    written, new = ([], [y]) if out is None else ([y], None)
    plan.formats[id(q.format)] = q.format
    kept = plan.keep(plan.key(q, out), recording, parts, written, workspace, new, q.library)
    return plan.plan if kept else None


# Programs hold kernels of the driver with which they were made.
ON_NEW_DRIVER += [_quantize_plan.cache_clear, _dequantize_plan.cache_clear]
