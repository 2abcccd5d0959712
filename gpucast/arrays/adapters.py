# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries: what an adapter for them is, and the registry that finds the adapter of an array.

No library is named here. Libraries and protocols are registered by their names alone (`gpucast/__init__.py` does it),
a library is looked for among the modules that the process has loaded, for there is no array of it before, and an
adapter is imported with the first array that needs it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.arrays.bitpacking import namespace
from gpucast.core import dtypes
from gpucast.core.dtypes import DType
from gpucast.core.options import Options

#: ``cast(x, to, options)``: the cast of an array of ours.
CastFunction = Callable[[Any, Any, Options], Any]


class ArrayAdapter(ABC):
    """How the arrays of one library, or of all that speak one protocol, come in and go back.

    Arrays of ours are those of NumPy and CuPy, and PackedArrays. Only `take` has no default: the other defaults are
    those of a library whose arrays are cast one by one, and that has no gradients and no compiler. `caller` begins the
    message of an error.
    """

    # ---- one array ----

    def accepts(self, x: Any) -> bool:
        """Whether `x`, an object with the attributes of the protocol, comes in by it. Default: always."""
        return True

    @abstractmethod
    def take(self, x: Any, caller: str, writing: bool = False) -> Any:
        """`x` as an array of ours over the same memory; `writing` where it is to be changed.

        TypeError or ValueError for an `x` whose memory cannot be read, or written.
        """

    def cast(self, cast: CastFunction, x: Any, to: Any, options: Options) -> Any:
        """The cast of `x` as its library has arrays; `cast` does it for arrays of ours. Errors as for `gpucast.cast`.

        Default: `take`, the cast, `finish` and `give_back`; ``options.out`` or `x` itself where the result is that.
        """
        array = self.take(x, options.caller)
        y = cast(array, to, options)
        self.finish(array, y)
        if options.out is not None:
            return options.out
        return x if y is array else self.give_back(y, x, options.caller)

    def finish(self, *arrays: Any) -> None:  # noqa: B027 (a default)
        """Called when a cast of these arrays of ours was given to a device. Default: nothing waits for it."""

    def give_back(self, y: Any, like: Any, caller: str) -> Any:
        """A result of ours as an array of the library of `like`. Default: as it is."""
        return y

    def shape(self, x: Any) -> tuple[int, ...]:
        """The shape of the elements of `x`. Default: as NumPy finds it."""
        return np.shape(x)

    def check_scale(self, scale: Any, caller: str) -> None:  # noqa: B027 (a default)
        """ValueError for a `scale` of the library that its arrays are not to be multiplied with. Default: none is."""

    def check_into(self, x: Any, caller: str) -> None:  # noqa: B027 (a default)
        """ValueError for an `x` that is not to be cast into an `out`. Default: none is."""

    # ---- other forms ----

    def from_packed(self, x: Any) -> Any:
        """An array of the library over the memory of a PackedArray. ValueError for a shape that it does not have.

        Default: TypeError, for a library that has no packed elements.
        """
        raise TypeError(f"PackedArray: {self._name} has no packed {x.dtype}; expected PyTorch, or pass x.data")

    def from_array(self, x: Any) -> Any:
        """An array of ours as one of the library, where it has such arrays. Default: as it is."""
        return x

    def cast_array(self, cast: CastFunction, x: Any, to: Any, options: Options) -> Any:
        """The cast of an array of ours that stands for one of the library. Default: `cast`, `finish`, `from_array`."""
        y = cast(x, to, options)
        self.finish(x, y)
        return y if y is x or options.out is not None else self.from_array(y)

    def export(self, x: Any) -> Any:
        """An object over the memory of an array of ours that speaks the protocol; BufferError where it cannot.

        Default: TypeError, for a protocol that arrays of ours speak themselves, or that they do not speak.
        """
        raise TypeError(f"{type(x).__name__}: {self._name} exports no arrays; expected DLPack")

    @property
    def _name(self) -> str:
        return type(self).__name__.removesuffix("Adapter")

    # ---- layers ----

    def cast_layer(self, cast: CastFunction, x: Any, to: Any, options: Options, coefficient: float) -> Any:
        """The cast of `x` by a layer: its gradient is cast back by the same options, times the coefficient.

        `cast` is that of any array. Default: by that, for a library that has no gradients.
        """
        return cast(x, to, options)

    def cast_times(self, times: CastFunction, x: Any, to: Any, options: Options) -> Any:
        """The cast of `x` times ``options.scale``, of any sign; `times` does it for arrays of ours. Default: that."""
        return self.cast_array(times, self.take(x, options.caller), to, options)

    # ---- compilers and transforms of functions ----

    def is_transforming(self, x: Any) -> bool:
        """Whether `x` stands for values that are not there yet, and has no memory to look at. Default: never."""
        return False

    def untraced(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function, into which the library's compiler does not look. Default: there is no compiler."""
        return function(*arguments)


def one_class(arrays: Sequence[Any]) -> None:
    """TypeError for objects of several classes."""
    if len(set(map(type, arrays))) != 1:
        raise TypeError("arrays of several classes")


class BatchPlanner(ABC):
    """How plans of `gpucast.cast_many` look at contiguous arrays of one class.

    Any method may raise anything for arrays that no plan is for.
    """

    @abstractmethod
    def describe(self, arrays: Sequence[Any]) -> Any:
        """All that a cast depends on but addresses and values; equal for arrays that are alike.

        TypeError for arrays of several classes.
        """

    @abstractmethod
    def addresses(self, arrays: Sequence[Any]) -> Sequence[int] | npt.NDArray[np.uint64]:
        """Where their elements begin."""

    @abstractmethod
    def allocator(self, arrays: Sequence[Any], dst: DType) -> Callable[[Sequence[Any]], list[Any]]:
        """Gives the memory for the results of arrays that are described as these contiguous ones are, as the caller
        gets them."""

    @abstractmethod
    def stream(self, device: int) -> int:
        """The stream, on the device of that index, that casts are given to."""

    def written(self, outs: Sequence[Any]) -> None:  # noqa: B027 (a default)
        """Called for outs, in which nothing is wrong, before they are written. Default: nothing is done."""


class BatchAdapter(ArrayAdapter):
    """The adapter of a library whose arrays share launches with ours in `gpucast.cast_many`."""

    @abstractmethod
    def empty_like(self, x: Any, dst: DType, caller: str) -> tuple[Any, Any]:
        """Memory for the cast of `x` to `dst`: what the caller gets, and the same as an array of ours."""

    @abstractmethod
    def stream(self, device: int) -> int:
        """The stream, on the device of that index, that casts are given to."""

    def attach(self, sources: list[Any], results: list[Any], scale: Any) -> list[Any]:
        """The results of casts, as what the library differentiates through. Default: as they are."""
        return results

    def planner(self, kind: type) -> BatchPlanner | None:
        """How plans look at arrays of exactly this class; None, the default, where no plan is for them."""
        return None


#: Gives an adapter. It holds an import statement, because a compiler that traces a call follows no importlib.
Load = Callable[[], ArrayAdapter]


class Library(NamedTuple):
    """A library whose arrays are of a class of its own."""

    #: Its module, and the name of the class in it.
    name: str
    array: str
    load: Load
    #: The name of the class of its dtypes; None for a library that has those of NumPy.
    dtype: str | None = None
    #: The functions that tell whether its compiler traces the call, or would trace what that calls, as paths in its
    #: module.
    is_compiling: tuple[tuple[str, ...], ...] = ()


class Protocol(NamedTuple):
    """A protocol, by the attributes of the objects that speak it."""

    attributes: tuple[str, ...]
    load: Load


#: The adapters of classes that are ours and whose arrays go back to another library all the same.
_KEPT: dict[type, ArrayAdapter] = {}
#: What `numpy.asarray` takes without asking the object. The types themselves: a subclass may speak a protocol.
_PLAIN = frozenset({np.ndarray, list, tuple, int, float, bool, str, bytes, type(None)})
#: The classes of arrays of ours that are known at once.
_OURS: tuple[type, ...] = (np.ndarray, np.generic)
#: The functions that tell whether the compiler of a loaded library is at work.
_COMPILING: dict[str, list[Callable[[], Any]]] = {}
#: Asked in this order, all libraries before the protocols, which their arrays may speak as well.
_LIBRARIES: list[Library] = []
_PROTOCOLS: list[Protocol] = []


def register(*entries: Library | Protocol) -> None:
    """Add libraries and protocols."""
    for entry in entries:
        if isinstance(entry, Protocol):
            _PROTOCOLS.append(entry)
            continue
        _LIBRARIES.append(entry)
        if entry.dtype is not None:
            dtypes.FOREIGN.add((entry.name, entry.dtype))


def register_ours(kind: type, adapter: ArrayAdapter | None = None) -> None:
    """Say that arrays of a class are ours, whatever protocol they speak; with an adapter, how they go back."""
    global _OURS  # noqa: PLW0603 (isinstance takes a tuple)
    _OURS = (*_OURS, kind)
    if adapter is not None:
        _KEPT[kind] = adapter


def find(x: Any) -> ArrayAdapter | None:
    """The adapter of `x`; None for what is no array of another library."""
    if type(x) in _PLAIN or isinstance(x, _OURS):
        return _KEPT.get(type(x))
    library = _library(x)
    if library is not None:
        return library.load()
    if namespace(x) is not None:
        return None
    for protocol in _PROTOCOLS:
        if all(_speaks(x, attribute) for attribute in protocol.attributes):
            adapter = protocol.load()
            if adapter.accepts(x):
                return adapter
    return None


def library_of(x: Any) -> str | None:
    """The name of the registered library whose array `x` is."""
    library = None if type(x) in _PLAIN or isinstance(x, _OURS) else _library(x)
    return None if library is None else library.name


def _library(x: Any) -> Library | None:
    for library in _LIBRARIES:
        module = sys.modules.get(library.name)
        if module is not None and isinstance(x, getattr(module, library.array, ())):
            return library
    return None


def of_library(name: str) -> ArrayAdapter:
    """The adapter of a registered library, whether that is loaded or not; ImportError where it is not installed."""
    return next(library for library in _LIBRARIES if library.name == name).load()


def of_protocol(attribute: str) -> ArrayAdapter:
    """The adapter of a registered protocol, by one of its attributes."""
    return next(protocol for protocol in _PROTOCOLS if attribute in protocol.attributes).load()


def untraced(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, which no library's compiler looks into: it would take NumPy's arrays for its own."""
    adapter = compiler()
    # Not within the loop there: torch.compile leaves a function alone whose graph would break within a loop, and goes
    # on with what that calls.
    return function(*arguments) if adapter is None else adapter.untraced(function, *arguments)


def compiler() -> ArrayAdapter | None:
    """The adapter of the library whose compiler traces this call, or what it calls."""
    for library in _LIBRARIES:
        if library.is_compiling:
            for asked in _COMPILING.get(library.name) or _is_compiling(library):
                if asked():
                    return library.load()
    return None


def _is_compiling(library: Library) -> list[Callable[[], Any]]:
    """The functions that tell of the library's compiler; none while it is not loaded."""
    found: list[Any] = []
    for path in library.is_compiling:
        asked: Any = sys.modules.get(library.name)
        for name in path:
            asked = getattr(asked, name, None)
        found.append(asked)
    if None not in found:
        # To find them takes longer than to ask them.
        _COMPILING[library.name] = found
    return [asked for asked in found if asked is not None]


def _speaks(x: Any, attribute: str) -> bool:
    """Whether an instance has the attribute: some have it on their class, and raise for memory that is not theirs."""
    try:
        return getattr(x, attribute, None) is not None
    except Exception:
        return False
