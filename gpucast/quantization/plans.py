# SPDX-License-Identifier: Apache-2.0
"""Plans of the functions that quantize: a call like an earlier one is one of the module, or repeats launches.

On the host they serve the formats that `quantize_on_host.quantizing` describes, with scales in the layout "linear"; an
earlier result of the checked path says how results look. On devices: `cuda_plans`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.packed import LibraryPackedArray, PackedArray
from gpucast.casting import plans
from gpucast.casting.list_plans import HOST_KINDS
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.core.fused_ops import Random
from gpucast.kernel import ON_NEW_DRIVER, recording
from gpucast.quantization import quantize_on_host
from gpucast.quantization.cuda_plans import Ask, Asked, CudaPlan, flat
from gpucast.quantization.formats import Format

#: The most plans of a function on devices.
_MOST_PLANS = 1024


class Repeats:
    """A public function of an array, what it is to become, and keywords: it keeps plans of its calls."""

    def __init__(
        self,
        roles: str,
        ask: Callable[..., Ask | None],
        host: Callable[..., Any] | None = None,
        **defaults: Any,
    ) -> None:
        """`roles` and `defaults` of the keywords: as for `gpucast.casting.plans.function`. ``ask(to, *keyed)``: how a
        device plan asks for calls with these values of keyed keywords; None for none.
        ``host(x, to, keywords, result)``: the plan of a call on the host, if there may be one."""
        self.hit, self._keep = plans.function(roles, **defaults)
        self._roles, self._ask, self._host = roles, ask, host
        self._cuda: dict[Any, CudaPlan] = {}
        # Programs hold kernels of the driver with which they were made.
        ON_NEW_DRIVER.append(self._cuda.clear)

    def call(self, checked: Callable[..., Any], x: Any, to: Any, keywords: tuple[Any, ...]) -> Any:
        """The result of a call by its plan, or of ``checked(x, to, *keywords)``, whose plan is kept."""
        if recording.current() is not None:
            # Part of another call, whose plan repeats all that is done.
            return checked(x, to, *keywords)
        if type(x) in plans.KINDS:
            found = self.hit(x, to, *keywords)
            if found is not None:
                return found
        with recording.recorded() as record:
            result = checked(x, to, *keywords)
        if MODULE is not None:
            self._keep_plan(x, to, keywords, result, record)
        return result

    def _keep_plan(self, x: Any, to: Any, keywords: tuple[Any, ...], result: Any, record: recording.Recording) -> None:
        keyed = [value for value, role in zip(keywords, self._roles, strict=True) if role == "k"]
        if not (isinstance(to, Format) or plans.is_lasting(to)) or not plans.is_lasting(*keyed):
            return
        if record.launches:
            plan = self._cuda_plan(x, to, keywords, keyed, result, record)
        else:
            plan = None if self._host is None else self._host(x, to, keywords, result)
        if plan is not None:
            plans.KINDS.add(type(x))
            self._keep(x, to, *keywords, plan)

    def _cuda_plan(
        self, x: Any, to: Any, keywords: tuple[Any, ...], keyed: list[Any], result: Any, record: recording.Recording
    ) -> Any:
        flags = [value is None for value, role in zip(keywords, self._roles, strict=True) if role == "f"]
        # 1 and True are two keys of the module.
        key = type(x), x.dtype, type(to), to, *map(type, keyed), *keyed, *flags
        plan = self._cuda.get(key)
        if plan is None:
            ask = self._ask(to, *keyed)
            if ask is None:
                return None
            if len(self._cuda) >= _MOST_PLANS:
                self._cuda.clear()
            plan = self._cuda[key] = CudaPlan(ask)
        free = [value for value, role in zip(keywords, self._roles, strict=True) if role != "k"]
        library = getattr(x, "library", None) if hasattr(type(x), "dequantize") else libraries.library_of(x)
        return plan.keep((x, *free), record, result, library)


# ---- what calls ask for, on devices ----

_LIMIT = 1 << 64


def words(seed: Any, offset: Any) -> Random | None:
    """The random words of a call; None for others than there are."""
    known = type(seed) is int and type(offset) is int and 0 <= seed < _LIMIT and 0 <= offset < _LIMIT
    return Random(seed, offset) if known else None


def signs_key(signs: Any, seed: Any) -> tuple[Any, Any] | None:
    """What decides on the signs of a transform; None for what only the checked path takes."""
    if signs is not None:
        if type(signs) not in (list, tuple) or any(type(sign) is not int for sign in signs):
            return None
        return tuple(signs), None
    return (None, seed) if seed is None or type(seed) is int else None


def _quantized_on_device(
    to: Any, axis: Any, layout: Any, transpose: Any, rounding: Any, hadamard: Any, device: Any
) -> Ask | None:
    if device is not None:
        return None
    transforms = hadamard is not None and hadamard != (None, None)

    def ask(x: Any, seed: Any, offset: Any, scale: Any, amax: Any, signs: Any, out: Any) -> Asked | None:
        random, key = None, None
        if rounding is not None:
            random = words(seed, offset)
            if random is None:
                return None
        elif type(offset) is not int or offset:
            return None
        if transforms:
            key = signs_key(signs, seed)
            if key is None or (rounding is None and signs is not None and seed is not None):
                return None
        elif signs is not None or (rounding is None and seed is not None):
            return None
        read = [x]
        for one in (scale, amax):
            if one is not None:
                # Another library's arrays may be written on another stream.
                if type(one) is not type(x):
                    return None
                read.append(one)
        keeper = out[0] if type(out) is tuple and out else out
        return Asked(read, out, key, random, (), None, keeper, "quantize")

    return ask


def _dequantized_on_device(to: Any, hadamard: Any) -> Ask | None:
    def ask(q: Any, signs: Any, seed: Any, out: Any) -> Asked | None:
        key = (None, None) if hadamard is None else signs_key(signs, seed)
        if key is None or (hadamard is None and not signs is seed is None):
            return None
        read: list[Any] = []
        form = flat(q, read)
        return Asked(read, out, (*key, q.format.name, q.axis), None, (), form, q, "dequantize")

    return ask


def _transformed_on_device(length: Any, axis: Any, inverse: Any, to: Any) -> Ask | None:
    def ask(x: Any, signs: Any, seed: Any, out: Any) -> Asked | None:
        key = signs_key(signs, seed)
        return None if key is None else Asked([x], out, key, caller="hadamard")

    return ask


def _grouped_on_device(to: Any, *keyed: Any) -> Ask | None:
    rounding = keyed[-1]

    def ask(x: Any, offsets: Any, scale: Any, seed: Any, offset: Any, out: Any) -> Asked | None:
        random = None
        if rounding is not None:
            random = words(seed, offset)
            if random is None or random.offset + x.shape[0] * x.shape[1] > _LIMIT:
                return None
        elif seed is not None or type(offset) is not int or offset:
            return None
        read, key = [x, offsets], None
        if type(scale) in (int, float):
            key = type(scale), scale
        elif scale is not None:
            read.append(scale)
        # Another library's arrays may be written on another stream.
        if any(type(one) is not type(x) for one in read):
            return None
        return Asked(read, out, key, random, caller="quantize_grouped")

    return ask


# ---- on the host ----

#: Gives a new array.
Make = Callable[[], Any]
#: The most shapes of a plan.
_MOST = 256
_PARTS = ("data", "scales", "zero_points", "global_scale")


class _Result(NamedTuple):
    """How the arrays of one shape are quantized."""

    #: For the module.
    how: bytes
    #: The class of results, `gpucast.Quantized`.
    quantized: Any
    format: Format
    #: The axis, and the shape of the codes as their class has it.
    axis: int
    shape: tuple[int, ...]
    kind: Any
    #: A new array for each part; None for one that there is not.
    makes: tuple[Make | None, ...]

    def is_like(self, q: Any) -> bool:
        """Whether an earlier result is one of these. (The module looks at its memory.)"""
        return (
            type(q) is self.quantized
            and q.format is self.format
            and q.axis == self.axis
            and q.scale_layout == "linear"
            and type(q.data) is self.kind
            and q.data.shape == self.shape
        )


class QuantizePlan:
    """What calls keep that differ in the shapes of their arrays alone."""

    def __init__(self, src: DType, library: str | None, kind: type) -> None:
        self.src, self.library, self.asked = src, library, HOST_KINDS[kind].library
        self.results: dict[tuple[int, ...], _Result] = {}
        self.plan = plans.make("", self.run)

    def run(self, x: Any, seed: Any, offset: Any, scale: Any, amax: Any, signs: Any, out: Any) -> Any:
        known = self.results.get(x.shape)
        if known is None or type(offset) is not int or offset or not (seed is scale is amax is signs is None):
            return None
        if out is None:
            parts = [None if make is None else make() for make in known.makes]
        elif known.is_like(out) and out.dtype is self.src and out.library == self.library:
            parts = [out.data, out.scales, out.zero_points, out.global_scale]
        else:
            return None
        data = parts[0]
        memory = data.data if isinstance(data, PackedArray) else data
        if not MODULE.quantize(known.how, self.asked, x, memory, *parts[1:]):
            return None
        if out is not None:
            return out
        q = object.__new__(known.quantized)
        # Past __init__, whose checks take longer than all else here.
        vars(q).update(
            data=data, scales=parts[1], zero_points=parts[2], global_scale=parts[3], format=known.format,
            dtype=self.src, axis=known.axis, scale_layout="linear", library=self.library,
        )  # fmt: skip
        return q


@lru_cache(maxsize=1024)
def _quantize_plan(src: DType, format: Format, axis: Any, library: str | None, kind: Any) -> QuantizePlan:
    return QuantizePlan(src, library, kind)


def _quantized_on_host(x: Any, asked: Any, keywords: tuple[Any, ...], q: Any) -> Any:
    # Later results look like this one. One that the caller gave may be of another class or library.
    if type(q).__name__ != "Quantized" or q.library != libraries.library_of(x):
        return None
    axis, layout, transpose, rounding, seed, _, scale, amax, hadamard, signs, device, _ = keywords
    if not (layout == "linear" and transpose is False and seed is scale is amax is signs is None):
        return None
    if not (rounding is hadamard is device is None) or type(x) not in HOST_KINDS or np.shape(q.global_scale) != ():
        return None
    how = quantize_on_host.quantizing(q.format, q.dtype, tuple(q.shape), q.axis)
    makes = tuple(_make(getattr(q, name)) for name in _PARTS)
    if how is None or any(
        (make is None) != (getattr(q, name) is None) for make, name in zip(makes, _PARTS, strict=True)
    ):
        return None
    kind: Any = type(x)
    plan = _quantize_plan(q.dtype, q.format, axis, q.library, kind)
    if len(plan.results) >= _MOST:
        plan.results.clear()
    plan.results[tuple(x.shape)] = _Result(how, type(q), q.format, q.axis, tuple(q.data.shape), type(q.data), makes)
    return plan.plan


def _make(part: Any) -> Make | None:
    """What gives new arrays of the host like a part; None for one that plans do not make."""
    if type(part) is np.ndarray:
        return partial(np.empty, part.shape, part.dtype)
    if type(part) in (PackedArray, LibraryPackedArray) and type(part.data) is np.ndarray:
        return partial(_new_packed, type(part), part.data.size, part.dtype, part.shape, getattr(part, "library", None))
    adapter = None if part is None else libraries.find(part)
    return None if adapter is None else adapter.like(part)


def _new_packed(kind: type, nbytes: int, element: DType, shape: tuple[int, ...], library: str | None) -> Any:
    array: Any = object.__new__(kind)
    array.data, array.dtype, array.shape = np.empty(nbytes, np.uint8), element, shape
    if library is not None:
        array.library = library
    return array


# ---- back ----


class _Numbers(NamedTuple):
    """How results of one kind become numbers."""

    how: bytes
    format: Format
    shape: tuple[int, ...]
    #: Of an `out`.
    kind: Any
    dtype: Any
    make: Make


class DequantizePlan:
    """What calls keep that differ in their `Quantized` alone."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[Any, ...], _Numbers] = {}
        self.plan = plans.make("", self.run)

    def run(self, q: Any, signs: Any, seed: Any, out: Any) -> Any:
        data = q.data
        known = self.numbers.get((id(q.format), q.axis, q.library, type(data), data.shape))
        if known is None or q.scale_layout != "linear" or not signs is seed is None:
            return None
        y = known.make() if out is None else out
        if out is not None and (type(out) is not known.kind or out.dtype != known.dtype or out.shape != known.shape):
            return None
        memory = data.data if isinstance(data, PackedArray) else data
        asked = None if type(y) is np.ndarray else HOST_KINDS[known.kind].library
        done = MODULE.dequantize(known.how, asked, memory, q.scales, q.zero_points, q.global_scale, y)
        return y if done else None


@lru_cache(maxsize=64)
def _dequantize_plan(src: DType, to: DType) -> DequantizePlan:
    return DequantizePlan()


def _dequantized_on_host(q: Any, to: Any, keywords: tuple[Any, ...], y: Any) -> Any:
    if not keywords[0] is keywords[1] is keywords[2] is None or type(y) not in HOST_KINDS:
        return None
    if q.scale_layout != "linear" or np.shape(q.global_scale) != ():
        return None
    shape, dst = tuple(q.shape), dtype(to)
    how, make = quantize_on_host.dequantizing(q.format, dst, shape, q.axis), _make(y)
    memory = q.data.data if isinstance(q.data, PackedArray) else q.data
    if how is None or make is None or type(memory) not in HOST_KINDS:
        return None
    plan = _dequantize_plan(q.dtype, dst)
    if len(plan.numbers) >= _MOST:
        plan.numbers.clear()
    key = (id(q.format), q.axis, q.library, type(q.data), q.data.shape)
    plan.numbers[key] = _Numbers(how, q.format, tuple(y.shape), type(y), y.dtype, make)
    return plan.plan


QUANTIZE = Repeats(
    "kkkkf.ffkfk.", _quantized_on_device, _quantized_on_host,
    axis=-1, scale_layout="linear", transpose=False, rounding=None, seed=None, offset=0, scale=None, amax=None,
    hadamard=None, signs=None, device=None, out=None,
)  # fmt: skip
DEQUANTIZE = Repeats(
    "kff.", _dequantized_on_device, _dequantized_on_host, hadamard=None, signs=None, seed=None, out=None
)
HADAMARD = Repeats(
    "kffkk.", _transformed_on_device, axis=-1, signs=None, seed=None, inverse=False, to="FLOAT", out=None
)
#: The type or format comes first; the layout of scales is None for casts.
GROUPED, GROUPED_CASTS = (
    Repeats(
        ".fkkkf..", _grouped_on_device,
        offsets=None, scale=None, pad=128, scale_layout="linear", rounding=None, seed=None, offset=0, out=None,
    )
    for _ in range(2)
)  # fmt: skip
