# SPDX-License-Identifier: Apache-2.0
"""Quantized: an array as narrow codes with scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.array import Array
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.overlap import Place, check_disjoint
from gpucast.arrays.packed import PackedArray, as_array, device_index, host_only
from gpucast.casting import calls, engines
from gpucast.casting.plans import by_plan
from gpucast.core.arithmetic import exact
from gpucast.core.checks import integer
from gpucast.core.dtypes import DType, dtype
from gpucast.core.errors import no_attribute
from gpucast.core.rule import resolve
from gpucast.kernel import devices, streams
from gpucast.quantization import engine, plans, recipes, swizzle
from gpucast.quantization.cuda_plans import library_of
from gpucast.quantization.formats import SOURCES, Format, Hadamard, Parts
from gpucast.quantization.option_checks import check_format, check_one_source, check_runs, resolve_hadamard
from gpucast.quantization.scale_orders import SCALE_LAYOUTS, ScaleLayout, in_layout, order

_FLOAT = dtype("FLOAT")
#: What to write for the methods of other libraries' arrays.
_NUMBERS = "q.dequantize('FLOAT') gives its numbers"
_INSTEAD = {
    **dict.fromkeys(("to", "cuda"), "gpucast.quantize(x, format, device='cuda') quantizes on the device"),
    **dict.fromkeys(("cpu", "numpy"), "q.get() is a copy on the host, and q.dequantize() its numbers"),
    **dict.fromkeys(("float", "half", "double", "bfloat16", "astype"), _NUMBERS),
}
#: The memory that results on devices keep between calls.
_WORKSPACES: WeakKeyDictionary[Quantized, Any] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False, repr=False)
class Quantized:
    """An array as narrow codes with scales: the result of `gpucast.quantize`.

    Code i stands for ``(data[i] - zero_points[b]) * scales[b] * global_scale``, where b is its block. On the host
    ``numpy.asarray(q)`` is ``q.dequantize()``.

    The parts are arrays of the library whose array was quantized: tensors of PyTorch, arrays of JAX, CuPy or NumPy, in
    the types that this library has. Codes below one byte are a `PackedArray`, except FLOAT4E2M1 in PyTorch (pairs along
    the last axis, where its length is even), and what JAX has for them on the host.

    ``Quantized(data, scales, "mxfp4")`` wraps existing parts and checks them: TypeError for wrong types,
    ValueError for wrong shapes.
    """

    #: The codes: an array of `shape` of the format's element type.
    data: Any
    #: FLOAT, FLOAT8E4M3FN or FLOAT8E8M0: of `Format.scales_shape`, or flat in another order.
    scales: Any
    format: Format
    #: INT8 or UINT8, of the scales' shape; None in symmetric formats.
    zero_points: Any = None
    #: A FLOAT array of shape (), or of `Format.rows_shape` with one for each of several rows; None in formats without
    #: one.
    global_scale: Any = None
    #: The type that was quantized.
    dtype: DType = _FLOAT
    #: The axis along which blocks run, or whose indices have one scale each. Not negative (0 for shape ()).
    axis: int = -1
    scale_layout: ScaleLayout = "linear"
    #: The library of the parts, and of the arrays that `dequantize` gives: "torch", "jax", or None for NumPy and CuPy.
    #: By default that of the parts; parts of NumPy and CuPy become arrays of a library that is named.
    library: str | None = None

    def __post_init__(self) -> None:
        caller = "Quantized"
        object.__setattr__(self, "format", recipes.find(self.format, caller))
        native = self._taken(caller)
        # First of all checks, because the next ones use the shape.
        _check_type(native.data, "data", self.format.element)
        shape = native.data.shape
        object.__setattr__(self, "dtype", source_dtype(self.dtype, f"{caller}: dtype="))
        object.__setattr__(self, "axis", checked_axis(self.axis, shape, self.format, caller))
        check_layout(self.scale_layout, shape, self.axis, self.format, caller)
        blocks = self.format.scales_shape(shape, self.axis)
        of_layout = in_layout(blocks, self.scale_layout, self.format.scale.bits // 8)
        _check(native.scales, "scales", self.format.scale, of_layout)
        _check(native.zero_points, "zero_points", self.format.zero_point, blocks)
        rows = self.format.rows_shape(shape, self.axis)
        _check(native.global_scale, "global_scale", _FLOAT if self.format.global_scale else None, (), rows)
        places = {device_index(part) for part in vars(native).values() if part is not None}
        if len(places) > 1:
            raise ValueError(f"{caller}: the parts are on different devices: {', '.join(map(devices.name, places))}")
        if self.library is None:
            own_library = next(filter(None, map(library_of, self.parts().values())), None)
            object.__setattr__(self, "library", own_library)
        library = None if self.library is None else _library(self.library, caller)
        for name, part in self.parts().items():
            own = getattr(native, name)
            if library is not None:
                own = part if library_of(part) == self.library else library.from_array(own)
            if name == "global_scale" and math.prod(rows) == 1:
                # That of a single row is that of the array.
                own = own.reshape(())
            object.__setattr__(self, name, own)

    @property
    def codes(self) -> Any:
        """The codes: `data` by another name."""
        return self.data

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that was quantized."""
        library = None if self.library is None else libraries.find(self.data)
        shape: tuple[int, ...] = self.data.shape if library is None else library.shape(self.data)
        return shape

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """The shape of the scales in the layout "linear"."""
        return self.format.scales_shape(self.shape, self.axis)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(int(part.nbytes) for part in vars(self.native("nbytes")).values() if part is not None)

    @property
    def device(self) -> Any:
        """The device of the parts: "cpu", or the CuPy device."""
        data = self.native("device").data
        data = data.data if isinstance(data, PackedArray) else data
        return "cpu" if isinstance(data, np.ndarray) else data.device

    def parts(self) -> dict[str, Any]:
        """The arrays by name: data, scales, and zero_points and global_scale if they exist."""
        named = {name: getattr(self, name) for name in ("data", "scales", "zero_points", "global_scale")}
        return {name: part for name, part in named.items() if part is not None}

    def native(self, caller: str, writing: bool = False) -> Parts:
        """The parts as NumPy and CuPy have them, over the same memory; codes below one byte as a PackedArray.

        `writing`: they will be changed; ValueError for parts that cannot be.
        """
        if self.library is None:
            return Parts(self.data, self.scales, self.zero_points, self.global_scale)
        return self._taken(caller, writing)

    def _taken(self, caller: str, writing: bool = False) -> Parts:
        """As `native`, for parts that may be of any library."""
        found = {name: _native(part, caller, writing) for name, part in self.parts().items()}
        data = found.get("data")
        if self.format.element.packed and data is not self.data and isinstance(data, np.ndarray):
            # As a library that packs them lends them: one byte for each.
            found["data"] = PackedArray.pack(data)
        return Parts(**{"data": None, "scales": None, **found})

    def plain(self) -> Quantized:
        """The same parts as arrays of NumPy or CuPy, as which `dequantize` then gives the numbers too."""
        return replace(self, **vars(self.native("plain")), library=None)

    @property
    def owned(self) -> Any:
        """The memory and its owner, for `gpucast.kernel.streams.visit`."""
        return streams.Owned(self.data, self.library) if libraries.find(self.data) is None else self.data

    def dlpack(self, part: str) -> Any:
        """A part for other libraries' ``from_dlpack``, without a copy: ``torch.from_dlpack(q.dlpack("data"))``.

        Of the types below one byte DLPack has only FLOAT4E2M1, in pairs; BufferError for the others (`data.data` holds
        the packed bytes). ValueError for a part that does not exist.
        """
        parts = self.parts()
        if part not in parts:
            raise ValueError(f"dlpack: part={part!r} is none of {', '.join(parts)}")
        return libraries.of_protocol("__dlpack__").export(getattr(self.native("dlpack"), part), self.library)

    def linear_scales(self) -> Any:
        """The scales in the layout "linear"."""
        return self.with_layout("linear").scales

    def with_layout(self, scale_layout: ScaleLayout) -> Quantized:
        """A copy with the scales in another layout. ValueError if these scales cannot have it."""
        check_layout(scale_layout, self.shape, self.axis, self.format, "with_layout")
        if scale_layout == self.scale_layout:
            return self
        with self._visit():
            scales = self._linear(self.native("with_layout").scales)
            if scale_layout != "linear":
                scales = swizzle.swizzle(scales, layout=scale_layout)
            return replace(self, scales=scales, scale_layout=scale_layout)

    def _linear(self, scales: Any, out: Any = None) -> Any:
        """Native scales, which have the layout of this, in the layout "linear"."""
        if self.scale_layout == "linear":
            return scales
        return swizzle.unswizzle(scales, self.scales_shape, layout=self.scale_layout, out=out)

    def get(self) -> Quantized:
        """A copy on the host; q itself if it is there."""
        with self._visit():
            native = self.native("get")
            data, *others = map(engines.to_host, vars(native).values())
            return self if data is native.data else replace(self, **vars(Parts(data, *others)))

    @by_plan(plans.DEQUANTIZE.hit)
    def dequantize(
        self,
        to: Any = "FLOAT",
        *,
        hadamard: int | None = None,
        signs: Any = None,
        seed: int | None = None,
        out: Any = None,
    ) -> Any:
        """The numbers: `gpucast.dequantize` of this."""
        return plans.DEQUANTIZE.checked(_dequantized, self, to, (hadamard, signs, seed, out))

    def workspace(self, caller: str) -> Any:
        """The memory on a device that it keeps between calls that write or read it; None on the host."""
        found = _WORKSPACES.get(self)
        if found is None:
            found = _WORKSPACES[self] = engines.of_array(self.native(caller).data).workspace(caller)
        return found

    def _visit(self) -> AbstractContextManager[None]:
        """Work within runs where the parts are, on the stream of their library."""
        return streams.visit(self.owned)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        host_only(self.native("Quantized").data, "Quantized: NumPy takes no array from a device by itself; use .get()")
        if copy is False:
            raise ValueError("Quantized: dequantizing copies; numpy.asarray(q, copy=False) is not possible")
        numbers: np.ndarray[Any, Any] = self.plain().dequantize(_FLOAT if dtype is None else dtype)
        return numbers

    def __reduce__(self) -> tuple[Any, ...]:
        # Libraries do not pickle all of their types.
        plain = self.plain()
        return Quantized, (*(getattr(plain, one.name) for one in fields(plain) if one.name != "library"), self.library)

    @exact()
    def __str__(self) -> str:
        return f"{self._head()})"

    @exact()
    def __repr__(self) -> str:
        values = "".join(
            f",\n  {name}={_shown(part, f'  {name}=')}" for name, part in self.get().plain().parts().items()
        )
        return f"{self._head()}{values})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _INSTEAD)

    def _head(self) -> str:
        where = engines.of_array(self.native("repr").data).pick("", f", device={self.device}")
        layout = "" if self.scale_layout == "linear" else f", scale_layout={self.scale_layout!r}"
        return (
            f"Quantized(format={self.format.name!r}, shape={self.shape}, dtype={self.dtype.name}, axis={self.axis}"
            f"{layout}, nbytes={self.nbytes}{where}"
        )


@exact()
def _dequantized(q: Quantized, to: Any, hadamard: Any, signs: Any, seed: Any, out: Any) -> Any:
    to, how = source_dtype(to, "dequantize: to="), _transform(q, hadamard, signs, seed)
    with streams.visit(q.owned, out):
        native = q.native("dequantize")
        if out is None:
            parts = replace(native, scales=q._linear(native.scales))
            return of_library(engine.of(parts.data).dequantize(parts, q.format, to, q.axis, hadamard=how), q.library)
        read = [Place(name, part) for name, part in vars(native).items() if part is not None]
        target = disjoint_out(Array.of(native.data), to, out, read, "dequantize").array
        workspace, scales = q.workspace("dequantize"), native.scales
        if q.scale_layout != "linear":
            shape, kind = q.scales_shape, q.format.scale
            # Memory that a captured graph may write again.
            linear = np.empty(shape, kind.numpy) if workspace is None else workspace.array("scales", shape, kind)
            q._linear(scales, out=linear)
            scales = linear
        engine.of(native.data).dequantize(replace(native, scales=scales), q.format, to, q.axis, target, workspace, how)
        return out


def _transform(q: Quantized, length: Any, signs: Any, seed: Any) -> Hadamard | None:
    """The transform of numbers that are transformed back."""
    caller = "dequantize"
    if length is None:
        if signs is not None or seed is not None:
            raise ValueError(f"{caller}: {'seed' if signs is None else 'signs'}= goes with hadamard=")
        return None
    check_one_source(signs, seed, caller)
    how = resolve_hadamard(length, signs, seed, f"{caller}: hadamard")
    check_format(q.format, caller)
    check_runs(how, q.shape, q.axis, caller)
    return how


def _native(part: Any, caller: str, writing: bool) -> Any:
    library = libraries.find(part)
    return part if library is None else library.take(part, caller, writing)


def _library(name: Any, caller: str) -> libraries.Library:
    """A library that arrays may be asked of. ValueError for an unknown one."""
    try:
        return libraries.of_library(name)
    except ValueError as error:
        raise ValueError(f"{caller}: {error}") from None


def _shown(part: Any, prefix: str) -> str:
    if isinstance(part, PackedArray):
        return part.shown(prefix)
    return np.array2string(part, separator=", ", prefix=prefix)


def source_dtype(kind: Any, caller: str) -> DType:
    """The dtype of a type that can be quantized, and dequantized to; TypeError for any other."""
    src = dtype(kind, caller=caller)
    if src not in SOURCES:
        raise TypeError(f"{caller}{src.name} must be one of {', '.join(map(str, SOURCES))}")
    return src


def source_array(x: Any, caller: str) -> tuple[Any, DType]:
    """The native array of a call that quantizes or transforms, and its dtype. TypeError for any other type."""
    array = as_array(x, caller)
    return array, source_dtype(array.dtype, f"{caller}: x.dtype=")


def of_library(y: Any, library: str | None) -> Any:
    """A native result as an array of a library; itself for None."""
    return y if library is None else libraries.of_library(library).from_array(y)


def disjoint_out(source: Array, to: DType, out: Any, read: Sequence[Place], caller: str) -> Array:
    """The `out` of a call, as a native array that takes numbers of a type, in the shape and place of the source, and
    shares no memory with the arrays that are read. TypeError or ValueError for another one."""
    target = calls.target_of(source, resolve(source.dtype, to), out, engines.of(source.device), caller)
    check_disjoint([Place("out", target.array)], read, caller)
    return target


def checked_axis(axis: Any, shape: tuple[int, ...], format: Format, caller: str) -> int:
    """The axis as a nonnegative number. TypeError or ValueError if the axis or the shape does not fit the format."""
    axis = integer(axis, f"{caller}: axis")
    ndim = len(shape)
    if ndim < format.min_ndim:
        raise ValueError(f"{caller}: shape {shape} has {ndim} dimensions; {format} needs at least {format.min_ndim}")
    if ndim == 0:
        if axis not in (0, -1):
            raise ValueError(f"{caller}: axis={axis} is out of bounds for shape ()")
        return 0
    if not -ndim <= axis < ndim:
        raise ValueError(f"{caller}: axis={axis} is out of bounds for shape {shape}")
    place: int = axis % ndim
    if format.min_ndim == 2 and place < ndim - 2:
        raise ValueError(f"{caller}: axis={axis}; blocks of {format} lie on the last two dimensions of {shape}")
    return place


#: In words.
_SIZES = {1: "one byte", 2: "two bytes", 4: "four bytes"}


def check_layout(layout: Any, shape: tuple[int, ...], axis: int, format: Format, caller: str) -> None:
    """ValueError for an unknown layout, or one that the scales of such an array cannot have."""
    if not isinstance(layout, str) or layout not in SCALE_LAYOUTS:
        raise ValueError(f"{caller}: scale_layout={layout!r} must be one of {', '.join(map(repr, SCALE_LAYOUTS))}")
    if layout == "linear":
        return
    asked = f"{caller}: scale_layout={layout!r}"
    known = order(layout)
    misshapen = len(shape) != 2 if known.matrices else format.min_ndim != 1
    if misshapen or format.scale.bits // 8 not in known.itemsizes or isinstance(format.block, str):
        sizes = " or ".join(_SIZES[size] for size in known.itemsizes)
        blocks = "blocks of matrices" if known.matrices else "one-dimensional blocks"
        raise ValueError(f"{asked} is for {blocks} with scales of {sizes}, not for {format}")
    if axis != len(shape) - 1:
        raise ValueError(f"{asked} needs blocks along the last axis; axis={axis} of shape {shape}")
    if shape[axis] % format.block[-1]:
        raise ValueError(f"{asked} needs whole blocks: {shape[axis]} elements are no multiple of {format.block[-1]}")


def _check(part: Any, name: str, expected: DType | None, *shapes: tuple[int, ...]) -> None:
    """Check that a part has this dtype and one of these shapes, or is None where `expected` is None."""
    if expected is None:
        if part is not None:
            raise ValueError(f"Quantized: {name} is {type(part).__name__}; expected None in this format")
        return
    _check_type(part, name, expected)
    if part.shape not in shapes:
        wanted = " or ".join(map(str, dict.fromkeys(shapes)))
        raise ValueError(f"Quantized: {name} has shape {part.shape}; expected {wanted}")


def _check_type(part: Any, name: str, expected: DType) -> None:
    if expected.packed:
        if not isinstance(part, PackedArray):
            raise TypeError(f"Quantized: {name} must be a PackedArray of {expected.name}, not {type(part).__name__}")
        actual = part.dtype
    else:
        if namespace(part) is None:
            raise TypeError(
                f"Quantized: {name} must be a NumPy or CuPy array of {expected.name}, not {type(part).__name__}"
            )
        actual = dtype(part.dtype, caller=f"Quantized: {name}: ")
    if actual is not expected:
        raise TypeError(f"Quantized: {name} has dtype {actual.name}; the format has {expected.name}")
