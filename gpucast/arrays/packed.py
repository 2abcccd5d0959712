# SPDX-License-Identifier: Apache-2.0
"""PackedArray: 2-, 4- and 6-bit codes in ONNX raw_data layout.

Layout (ONNX TensorProto.raw_data): the row-major elements as one little-endian stream of bits. 4-bit codes lie two to
a byte, low nibble first; 2-bit codes four to a byte, low bits first; 6-bit codes four to three bytes. Zero padding
fills the last byte.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpucast.arrays import libraries
from gpucast.arrays.bitpacking import group_of, namespace, pack_codes, to_numpy, unpack_codes
from gpucast.arrays.libraries import CastFunction, Lent, Library
from gpucast.core.arithmetic import exact
from gpucast.core.checks import checked_shape
from gpucast.core.dtypes import DType, dtype
from gpucast.core.errors import no_attribute
from gpucast.core.rule import Options

_Result = TypeVar("_Result")
#: `gpucast.cast`, which stands above and puts itself here.
_CAST: list[Callable[..., Any]] = []
#: What to write for the methods of other libraries' arrays.
_INSTEAD = {
    **dict.fromkeys(("to", "cuda"), "gpucast.cast(p, p.dtype, device='cuda') moves it, and p.astype(dtype) casts it"),
    **dict.fromkeys(("cpu", "numpy"), "p.get() is a NumPy array of its numbers"),
    "float": "gpucast.cast(p, 'FLOAT') gives its numbers",
    "half": "gpucast.cast(p, 'FLOAT16') gives its numbers",
    "double": "gpucast.cast(p, 'DOUBLE') gives its numbers",
    "bfloat16": "gpucast.cast(p, 'BFLOAT16') gives its numbers",
}


def register_cast(cast: Callable[..., Any]) -> None:
    """Set the function that converts PackedArrays to other types."""
    _CAST[:] = [cast]


def _in_order(method: Callable[..., _Result]) -> Callable[..., _Result]:
    """A method of PackedArray that works on CuPy's stream, after the work of the array's library and before its next.

    So its results may be used on either stream.
    """

    @functools.wraps(method)
    def inner(self: PackedArray, *arguments: Any, **keywords: Any) -> _Result:
        if not any(isinstance(one, LibraryPackedArray) for one in (self, *arguments)):
            return method(self, *arguments, **keywords)
        with libraries.visit(None, self, *arguments):
            return method(self, *arguments, **keywords)

    return inner


def device_index(x: Any) -> int | None:
    """The index of the device that holds a CuPy array, or a PackedArray over one; None for the host."""
    if x is None or type(x) is np.ndarray:
        return None
    data = x.data if isinstance(x, PackedArray) else x
    module = namespace(data)
    # As data.device.id, which makes an object.
    return None if module is None or module is np else int(data.data.device_id)


def host_only(x: Any, message: str) -> None:
    """TypeError with this message for an array on a device."""
    if device_index(x) is not None:
        raise TypeError(message)


def unmasked(x: Any, caller: str) -> None:
    """TypeError for a masked array, whose mask would be lost."""
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(x, masked.MaskedArray):
        raise TypeError(f"{caller} is a masked array, whose mask would be lost; pass x.data or x.filled(value)")


def as_array(x: Any, caller: str) -> Any:
    """`x` as an array that casts take: a PackedArray or CuPy array as it is, arrays of other libraries over their own
    memory, all else as a plain NumPy array."""
    # As most calls have it: what follows takes longer than a small cast.
    if type(x) is np.ndarray and x.dtype.kind != "O" and x.dtype.names is None:
        return x
    unmasked(x, f"{caller}: x")
    if isinstance(x, PackedArray) or namespace(x) not in (None, np):
        return x
    library = libraries.find(x)
    if library is not None:
        return library.take(x, caller)
    # asarray, because subclasses such as np.matrix change what indexing and reshaping mean.
    if isinstance(x, np.ndarray):
        array = np.asarray(x)
    else:
        # NumPy may convert the elements of a list to one type.
        with exact():
            array = _of_rows(x, caller)
    if array.dtype.names is not None:
        return _of_field(array, caller)
    return _numbers(x, array, caller) if array.dtype == object else array


def _of_rows(x: Any, caller: str) -> npt.NDArray[Any]:
    """``numpy.asarray(x)``, with an error for lists whose parts are no array."""
    try:
        return np.asarray(x)
    except ValueError as error:
        if isinstance(x, list | tuple):
            raise ValueError(f"{caller}: x is a list of parts of unequal lengths; expected equal ones") from error
        raise


def _of_field(x: npt.NDArray[Any], caller: str) -> npt.NDArray[Any]:
    """An array as NumPy reads it from a file of gpucast's, whose only field holds codes, in its own type."""
    kind = dtype(x.dtype, caller=f"{caller}: x.dtype=")
    if kind.numpy.names is not None:
        return x
    (name,) = x.dtype.names or ()
    codes: npt.NDArray[Any] = x[name].astype(kind.code_numpy, copy=False)
    return codes.view(kind.numpy)


@exact()
def _numbers(x: Any, array: npt.NDArray[Any], caller: str) -> npt.NDArray[Any]:
    """An array of objects as it is where they begin with a text, else as NumPy has these numbers.

    TypeError, which names the first element that is none, for other objects.
    """
    if array.size == 0 or isinstance(array.item(0), (str, bytes)):
        return array
    flat = array.reshape(-1).tolist()
    for i, element in enumerate(flat):
        if not isinstance(element, (bool, int, float, complex, np.generic)) or isinstance(element, (str, bytes)):
            if array.ndim == 0:
                raise TypeError(f"{caller}: x is {_described(element)}")
            found = repr(element) if element is None else f"of type {type(element).__name__}"
            raise TypeError(f"{caller}: element {i} of x is {found}; expected a number, as element 0 is no text")
        if isinstance(element, int) and not -(1 << 63) <= element < 1 << 64:
            where = "x" if array.ndim == 0 else f"element {i} of x"
            raise TypeError(
                f"{caller}: {where} is an integer of {element.bit_length()} bits, which no type of Cast holds; pass it "
                "as a float, or as text for its nearest number in another type"
            )
    return np.asarray(flat).reshape(array.shape)


def _described(x: Any) -> str:
    """Describe an object that is not an array, with the function that takes it, if there is one."""
    what = f"of type {type(x).__name__}"
    if x is None:
        return "None; expected an array, a number or a text"
    if isinstance(x, (type, np.dtype, DType)):
        return f"the type {getattr(x, '__name__', x)}; the array is the first argument, and the type the second"
    if isinstance(x, ModuleType):
        return f"the module {x.__name__}; expected an array"
    if callable(getattr(x, "state_dict", None)):
        return f"{what}, a model; cast its arrays: gpucast.cast_many(x.state_dict(), to)"
    if hasattr(x, "graph") and hasattr(x, "SerializeToString"):
        return f"{what}, a model; write it to a file, and cast its tensors with `gpucast convert`"
    others = "; gpucast.cast_many takes dicts of arrays" if isinstance(x, dict) else ""
    return (
        f"{what}; expected an array, a number, a text, or an object with __dlpack__, __cuda_array_interface__ or "
        f"__array__{others}"
    )


class PackedArray:
    """An array of a 2-, 4- or 6-bit type, packed as ONNX raw_data.

    ``PackedArray.pack(x)`` packs a copy of an ml_dtypes array. ``PackedArray(data, dtype, shape)`` uses `data` without
    a copy: a flat contiguous uint8 array of NumPy or CuPy with exactly ``ceil(size * bits / 8)`` bytes.

    Attributes: `data`, `dtype` (the gpucast row), `shape`, `ndim`, `size`, `nbytes` and `device`. Indexing copies and
    gives a PackedArray (of shape () for one element). There are no strides, so a transpose raises. `astype` is
    `gpucast.cast`. ``==`` compares values element by element, as in NumPy, on the array's own device.
    """

    __slots__ = ("data", "dtype", "shape")
    __hash__ = None  # type: ignore[assignment]
    #: Binary operators of NumPy arrays give way instead of looping over elements.
    __array_ufunc__ = None

    def __init__(self, data: Any, dtype: Any, shape: Any) -> None:
        row = _packed_row(dtype, "PackedArray")
        lengths = checked_shape(shape, "PackedArray")
        if namespace(data) is None:
            raise TypeError(f"PackedArray: data={type(data).__name__} must be a NumPy or CuPy array")
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise TypeError(
                f"PackedArray: data has dtype {data.dtype} and shape {data.shape}; expected flat contiguous uint8"
            )
        needed = row.nbytes(math.prod(lengths))
        if data.size != needed:
            raise ValueError(f"PackedArray: data holds {data.size} bytes; {row.name} of shape {lengths} takes {needed}")
        self.data = data
        self.dtype: DType = row
        self.shape = lengths

    @classmethod
    def pack(cls, x: Any, dtype: Any = None) -> PackedArray:
        """Pack an unpacked array: ml_dtypes elements, or uint8 / int8 codes together with `dtype`.

        `x` is a NumPy array, or a CuPy array tagged with the ml_dtypes dtype, of any shape and strides. Each element is
        one byte, whose low bits count. The codes are copied.
        """
        if isinstance(x, PackedArray):
            raise TypeError("PackedArray.pack: x is packed already; expected an unpacked array")
        with libraries.visit(None, x):
            x = as_array(x, "PackedArray.pack")
            xp = namespace(x)
            row = _packed_row(x.dtype if dtype is None else dtype, "PackedArray.pack")
            if x.dtype not in (row.numpy, np.uint8, np.int8):
                raise TypeError(f"PackedArray.pack: x has dtype {x.dtype}; expected {row.numpy}, or its codes as uint8")
            # As plain bytes: CuPy copies no dtype that it does not know.
            flat = xp.ascontiguousarray(x.view(xp.uint8)).reshape(-1)
            return cls(pack_codes(flat, row.bits), row, x.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return int(self.data.size)

    @property
    def device(self) -> Any:
        """Where the data is: "cpu", or the CuPy device."""
        return "cpu" if isinstance(self.data, np.ndarray) else self.data.device

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a PackedArray of shape ()")
        return self.shape[0]

    @_in_order
    def codes(self) -> Any:
        """The codes, one per byte, as a new uint8 array of the same shape where the data is."""
        return unpack_codes(self.data, self.dtype.bits, self.size).reshape(self.shape)

    def unpack(self) -> Any:
        """The elements, one per byte, as a new array where the data is, tagged with the ml_dtypes dtype."""
        return self.codes().view(self.dtype.numpy)

    @_in_order
    def get(self) -> np.ndarray[Any, Any]:
        """The elements as a new NumPy array of the ml_dtypes dtype, one per byte."""
        data = to_numpy(self.data)
        unpacked: np.ndarray[Any, Any] = PackedArray(data, self.dtype, self.shape).unpack()
        return unpacked

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        host_only(self, "PackedArray: NumPy takes no array from a device by itself; use .get()")
        if copy is False:
            raise ValueError("PackedArray: unpacking copies; numpy.asarray(x, copy=False) is not possible")
        unpacked = self.get()
        if dtype is None or np.dtype(dtype) == unpacked.dtype:
            return unpacked
        if np.dtype(dtype).kind in "OSTUc":
            # Types that are no numbers of Cast: NumPy's own conversion.
            return self._values().astype(dtype)
        return np.asarray(_CAST[0](self.plain(), dtype))

    def astype(self, dtype: Any) -> Any:
        """``gpucast.cast(self, dtype)``: anything that `gpucast.dtype` takes."""
        return _CAST[0](self, dtype)

    def item(self, *index: Any) -> int | float:
        """One element as a Python number, by an index as for ``numpy.ndarray.item``; without one, the only element."""
        found: int | float = self._values().item(*index)
        return found

    def tolist(self) -> Any:
        """The elements as Python numbers, in nested lists."""
        return self._values().tolist()

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    @_in_order
    def __eq__(self, other: object) -> Any:
        return self._comparable(self) == self._comparable(other)

    @_in_order
    def __ne__(self, other: object) -> Any:
        return self._comparable(self) != self._comparable(other)

    @staticmethod
    def _comparable(x: Any) -> Any:
        """A PackedArray, or an array of a type that NumPy lacks, as DOUBLE, which has all its values."""
        if isinstance(x, PackedArray):
            return _CAST[0](x.plain(), "DOUBLE")
        return _CAST[0](x, "DOUBLE") if getattr(getattr(x, "dtype", None), "isbuiltin", 1) == 2 else x

    def to_torch(self) -> Any:
        """A tensor over the same memory (a copy of a read-only array), where the data is.

        FLOAT4E2M1: ``torch.float4_e2m1fn_x2``, pairs along the last axis; other types: ``torch.uint8``, the packed
        bytes. The last axis takes whole bytes and is as long as their number; else ValueError.
        """
        return libraries.untraced(libraries.of_library("torch").from_packed, self)

    @_in_order
    def __dlpack__(self, **keywords: Any) -> Any:
        """DLPack: FLOAT4E2M1 alone, in pairs along the last axis, as torch takes it; else BufferError."""
        return libraries.of_protocol("__dlpack__").export(self).__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = libraries.of_protocol("__dlpack__").export(self).__dlpack_device__()
        return device

    @_in_order
    def tobytes(self) -> bytes:
        """The packed bytes: what ONNX stores as raw_data."""
        data = to_numpy(self.data)
        return bytes(data.tobytes())

    def reshape(self, *shape: Any) -> PackedArray:
        """The same data under another shape (no copy). One length may be -1."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape
        try:
            # NumPy's own reshape works out -1 and checks the size, on an array that takes no memory.
            new = np.broadcast_to(np.uint8(0), self.shape).reshape(wanted).shape
        except TypeError:
            raise TypeError(f"PackedArray: shape {wanted!r} must be made of ints") from None
        except ValueError:
            raise ValueError(f"PackedArray: cannot reshape {self.shape} to {wanted!r}") from None
        return self._of(self.data, new)

    def __iter__(self) -> Iterator[PackedArray]:
        return (self[i] for i in range(len(self)))

    @_in_order
    def __getitem__(self, key: Any) -> PackedArray:
        """A copy of the selected elements, with NumPy's indexing. A leading int or slice unpacks only its rows."""
        head, *rest = key if isinstance(key, tuple) and key else (key,)
        if not self.shape or isinstance(head, bool) or not isinstance(head, (int, np.integer, slice)):
            return self._packed(self.codes()[key])
        rows = range(self.shape[0])
        if isinstance(head, slice):
            rows = rows[head]
            begin, end = (min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1) if rows else (0, 0)
            head = slice(None, None, rows.step)
        else:
            try:
                begin = rows[head]
            except IndexError:
                raise IndexError(f"PackedArray: index {head} is out of bounds for {len(rows)} rows") from None
            end, head = begin + 1, 0
        selected = (head, *rest)
        return self._packed(self._rows(begin, end)[selected])

    def _rows(self, begin: int, end: int) -> Any:
        """The codes of some rows, as `codes` gives them for all."""
        row, bits = math.prod(self.shape[1:]), self.dtype.bits
        count, width = group_of(bits)
        group = begin * row // count
        skip = begin * row - group * count
        data = self.data[group * width : -(-end * row * bits // 8)]
        return unpack_codes(data, bits, skip + (end - begin) * row)[skip:].reshape(end - begin, *self.shape[1:])

    def transpose(self, *axes: Any) -> PackedArray:
        raise TypeError("PackedArray: packed data cannot be transposed; unpack it first with .get()")

    @property
    def T(self) -> PackedArray:
        return self.transpose()

    @_in_order
    def copy(self) -> PackedArray:
        return self._of(self.data.copy(), self.shape)

    def plain(self) -> PackedArray:
        """A view of the same data whose casts are NumPy or CuPy arrays, whatever library it came from."""
        return self

    def _packed(self, codes: Any) -> PackedArray:
        packed = PackedArray.pack(codes, self.dtype)
        return self._of(packed.data, packed.shape)

    def _of(self, data: Any, shape: tuple[int, ...]) -> PackedArray:
        """An array of the same kind over other data."""
        return PackedArray(data, self.dtype, shape)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # CuPy pickles its arrays by way of the host, and brings them back to the device that is current then.
        return PackedArray, (self.data, self.dtype, self.shape)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _INSTEAD)

    def __repr__(self) -> str:
        where = "" if isinstance(self.data, np.ndarray) else f", device={self.device}"
        return f"PackedArray({self.shown('PackedArray(')}, dtype={self.dtype.name}, shape={self.shape}{where})"

    def shown(self, prefix: str) -> str:
        """The values that NumPy would print: all of a small array, the edges of a large one."""
        options = np.get_printoptions()
        if self.size <= options["threshold"]:
            return np.array2string(self._values(), separator=", ", prefix=prefix)
        # The elements at the edges, and one more in their middle, which is not shown.
        edge = options["edgeitems"]
        axes = [range(n) if n <= 2 * edge else [*range(edge + 1), *range(n - edge, n)] for n in self.shape]
        values = self._values(np.asarray(np.ravel_multi_index(np.ix_(*axes), self.shape)))
        return np.array2string(values, separator=", ", threshold=0, edgeitems=edge, prefix=prefix)

    @_in_order
    def _values(self, places: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """The values on the host, as NumPy's int64 or float64: all, or those at some places in row-major order."""
        data = to_numpy(self.data)
        bits = self.dtype.bits
        if places is None:
            codes = unpack_codes(data, bits, self.size).reshape(self.shape)
        else:
            first, skip = np.divmod(places * bits, 8)
            # A code of 6 bits may lie in two bytes.
            last = np.minimum(first + 1, data.size - 1)
            codes = (data[first] | data[last].astype(np.uint16) << 8) >> skip & self.dtype.code_mask
        table = np.array([self.dtype.value(code) for code in range(self.dtype.code_mask + 1)])
        return np.asarray(table[codes])


class LibraryPackedArray(PackedArray):
    """A PackedArray in place of an array of another library, which lacks the type: casts of it are arrays of that."""

    __slots__ = ("library",)

    def __init__(self, data: Any, dtype: Any, shape: Any, library: str) -> None:
        super().__init__(data, dtype, shape)
        #: The name of the library.
        self.library = library

    def plain(self) -> PackedArray:
        return PackedArray(self.data, self.dtype, self.shape)

    def _of(self, data: Any, shape: tuple[int, ...]) -> PackedArray:
        return LibraryPackedArray(data, self.dtype, shape, self.library)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return LibraryPackedArray, (self.data, self.dtype, self.shape, self.library)


class _PackedLibrary(Library):
    """PackedArrays in place of arrays of one library."""

    def __init__(self, name: str) -> None:
        self._own = name

    def take(self, x: LibraryPackedArray, caller: str, writing: bool = False) -> PackedArray:
        return x.plain()

    def cast(self, cast: CastFunction, x: LibraryPackedArray, to: Any, options: Options) -> Any:
        return libraries.untraced(self._cast, cast, x, to, options)

    def _cast(self, cast: CastFunction, x: LibraryPackedArray, to: Any, options: Options) -> Any:
        plain = x.plain()
        with libraries.visit(x, options.out, options.scale, options.amax, device=options.device):
            y = libraries.of_library(self._own).cast_array(cast, plain, to, options)
        return x if y is plain else y

    def lent(self, x: LibraryPackedArray) -> Lent | None:
        index = device_index(x)
        return None if index is None else Lent(index, self.stream(index))

    def stream(self, device: int) -> int | None:
        return libraries.of_library(self._own).stream(device)


_packed_library = functools.lru_cache(_PackedLibrary)
libraries.register_ours(PackedArray)
libraries.register_ours(LibraryPackedArray, lambda x: _packed_library(x.library))


def _packed_row(kind: Any, caller: str) -> DType:
    row = dtype(kind, caller=f"{caller}: dtype=")
    if not row.packed:
        raise TypeError(f"{caller}: dtype={row.name} has {row.bits} bits; expected a type of 2, 4 or 6 bits")
    return row
