# SPDX-License-Identifier: Apache-2.0
"""Plans of `gpucast.quantize` and `gpucast.dequantize` for arrays of CuPy: the launches of an earlier call, repeated.

They serve arrays on the current device that lie as those of that call did; `gpucast.kernel.recording` says how alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gpucast import casting, kernel
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

    def of(self, made: Sequence[Any]) -> Any:
        data = made[self.number]
        if self.as_array is not None:
            shape, kind, strides = self.as_array
            data = type(data)(shape, kind, data.data, strides)
        if self.packed is None:
            return data
        array: Any = object.__new__(PackedArray)
        array.data, (array.dtype, array.shape) = data, self.packed
        return array


class _Known(NamedTuple):
    """What arrays of a kind need."""

    program: Program
    device: int
    given: tuple[_Given, ...]
    #: How many of the given arrays are read; the others are written.
    reads: int
    #: The names of a workspace's arrays, which come after the given ones, and their addresses modulo `ALIKE`.
    kept: tuple[tuple[Any, int], ...]
    #: The parts of a new result; None where there is an `out`.
    parts: tuple[_Part | None, ...] | None

    def serve(self, array: Any, given: Sequence[Any], workspace: Any, seed: int, offset: int) -> list[Any] | None:
        """Repeat the call: the new parts, [] where there is an `out`; None, nothing done, where only the checked path
        can tell."""
        cuda, device = kernel.driver.driver(), self.device
        if cuda.current() != device or (self.parts is not None and cuda.capturing()):
            return None
        addresses = []
        for x, (shape, kind, _, alike) in zip(given, self.given, strict=True):
            if type(x) is not array or x.shape != shape or x.dtype != kind or not x._c_contiguous:
                return None
            memory = x.data
            if memory.device_id != device or memory.ptr % ALIKE != alike:
                return None
            addresses.append(memory.ptr)
        if self.reads < len(addresses) and not self._are_disjoint(addresses):
            return None
        for name, alike in self.kept:
            held = workspace.kept(name)
            if held is None or casting.cuda.address(held) % ALIKE != alike:
                return None
            addresses.append(casting.cuda.address(held))
        made = [kernel.driver.empty(*one) for one in self.program.new]
        addresses += [one.data.ptr for one in made]
        self.program.run(addresses, seed, offset)
        return [] if self.parts is None else [None if part is None else part.of(made) for part in self.parts]

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

    def __init__(self, array: Any) -> None:
        self.array: Any = array
        self.known: dict[tuple[Any, ...], _Known] = {}

    def keep(
        self,
        key: tuple[Any, ...],
        recording: Recording,
        read: Sequence[Any],
        written: Sequence[Any],
        workspace: Any,
        result: Sequence[Any] | None,
        seed: int | None = None,
        offset: int = 0,
    ) -> bool:
        """Keep a call that can be repeated. result: the parts of a new one; None where there was an `out`."""
        given = [*read, *written]
        if not all(type(x) is self.array and x._c_contiguous for x in given) or (result is None and recording.made):
            return False
        held = {} if workspace is None or result is not None else dict(workspace.items())
        found = program(recording, [*given, *map(_data, held.values())], seed, offset)
        parts = None if result is None else [_part(part, recording.made) for part in result]
        if found is None or (parts is not None and parts.count(None) != sum(part is None for part in result or ())):
            return False
        if len(self.known) >= _MOST:
            self.known.clear()
        self.known[key] = _Known(
            found,
            int(given[0].data.device_id),
            tuple(_Given(x.shape, x.dtype, int(x.nbytes), int(x.data.ptr) % ALIKE) for x in given),
            len(read),
            tuple((name, casting.cuda.address(x) % ALIKE) for name, x in held.items()),
            None if parts is None else tuple(parts),
        )
        return True


def _data(x: Any) -> Any:
    return x.data if isinstance(x, PackedArray) else x


def _part(part: Any, made: Sequence[Any]) -> _Part | None:
    """How a part of a new result is one of the new arrays; None for one that is none."""
    if part is None:
        return None
    data, packed = _data(part), None
    if isinstance(part, PackedArray):
        packed = part.dtype, part.shape
    for number, one in enumerate(made):
        if one.data.ptr == data.data.ptr and one.nbytes == data.nbytes:
            same = (one.shape, one.dtype, one.strides) == (data.shape, data.dtype, data.strides)
            return _Part(number, None if same else Memory(data.shape, data.dtype, data.strides), packed)
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

    def __init__(self, array: Any, quantized: Any, stochastic: bool) -> None:
        super().__init__(array)
        self.quantized, self.stochastic, self.plan = quantized, stochastic, plans.make("", self.run)
        #: Attributes of results but their parts, by the key of arrays.
        self.attributes: dict[tuple[Any, ...], dict[str, Any]] = {}

    @staticmethod
    def key(x: Any, scale: Any, amax: Any, out: Any) -> tuple[Any, ...]:
        """What `known` is found by."""
        given = [None if one is None else getattr(one, "shape", one) for one in (scale, amax)]
        return x.shape, x.data.device_id, *given, out is None

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
        parts = known.serve(self.array, given, workspace, seed or 0, offset)
        if parts is None or out is not None:
            return None if parts is None else out
        q = object.__new__(self.quantized)
        # Past __init__, whose checks take longer than all else here.
        vars(q).update(attributes)
        vars(q).update(zip(("data", "scales", "zero_points", "global_scale"), parts, strict=True))
        return q


@lru_cache(maxsize=1024)
def _quantize_plan(array: Any, quantized: Any, stochastic: bool, *call: Any) -> QuantizePlan:
    return QuantizePlan(array, quantized, stochastic)


def keep_quantize(x: Any, asked: Any, keywords: tuple[Any, ...], q: Any, recording: Recording) -> Any:
    """The plan of a call that gave `q`, if there may be one."""
    axis, layout, transpose, rounding, seed, offset, scale, amax, hadamard, signs, device, out = keywords
    given = [one for one in (x, scale, amax) if one is not None]
    if MODULE is None or not all(map(_is_array, given)) or device is not None or signs is not None:
        return None
    # A seed also gives the signs of a transform.
    if transpose is not False or (seed is not None and (rounding is None or hadamard is not None)):
        return None
    if not isinstance(asked, (str, Format)) or not plans.is_lasting(axis, layout, rounding, hadamard):
        return None
    kinds: tuple[Any, ...] = type(x), type(q)
    plan = _quantize_plan(*kinds, rounding is not None, dtype(x.dtype), q.format, axis, layout, hadamard)
    parts = [_data(part) for part in _parts(q) if part is not None]
    workspace = None if out is None else q.workspace("quantize")
    key = plan.key(x, scale, amax, out)
    new = _parts(q) if out is None else None
    if not plan.keep(key, recording, given, [] if out is None else parts, workspace, new, seed, int(offset)):
        return None
    names = ("format", "dtype", "axis", "scale_layout", "library")
    plan.attributes[key] = {name: getattr(q, name) for name in names}
    return plan.plan


# ---- back ----


class DequantizePlan(CudaPlan):
    """Of `gpucast.dequantize`."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.plan = plans.make("", self.run)

    @staticmethod
    def key(q: Any, out: Any) -> tuple[Any, ...]:
        """What `known` is found by; its format lives as long as that."""
        return id(q.format), q.axis, q.scale_layout, q.library, type(q.data), q.data.shape, out is None

    def run(self, q: Any, signs: Any, seed: Any, out: Any) -> Any:
        known = self.known.get(self.key(q, out))
        if known is None or not signs is seed is None:
            return None
        given, workspace = [_data(part) for part in _parts(q) if part is not None], None
        if out is not None:
            given.append(out)
            workspace = q.workspace("dequantize") if known.kept else None
        if len(given) != len(known.given):
            return None
        parts = known.serve(self.array, given, workspace, 0, 0)
        if parts is None:
            return None
        return parts[0] if out is None else out


@lru_cache(maxsize=256)
def _dequantize_plan(array: Any, *call: Any) -> DequantizePlan:
    return DequantizePlan(array)


#: The formats that keys name by their `id`.
_FORMATS: set[Format] = set()


def keep_dequantize(q: Any, to: Any, keywords: tuple[Any, ...], y: Any, recording: Recording) -> Any:
    """The plan of a call that gave `y`, if there may be one."""
    hadamard, signs, seed, out = keywords
    parts = [_data(part) for part in _parts(q) if part is not None]
    if MODULE is None or not signs is seed is None or q.library is not None or not plans.is_lasting(to, hadamard):
        return None
    if not all(map(_is_array, (*parts, y))):
        return None
    kind: Any = type(y)
    plan = _dequantize_plan(kind, q.dtype, dtype(to), hadamard)
    workspace = None if out is None else q.workspace("dequantize")
    written, new = ([], [y]) if out is None else ([y], None)
    if not plan.keep(plan.key(q, out), recording, parts, written, workspace, new):
        return None
    _FORMATS.add(q.format)
    return plan.plan


# Programs hold kernels of the driver with which they were made.
ON_NEW_DRIVER += [_quantize_plan.cache_clear, _dequantize_plan.cache_clear]
