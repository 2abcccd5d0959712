# SPDX-License-Identifier: Apache-2.0
"""The protocol of a library of arrays, and the registry that finds the `Library` of an array.

This module names no library. `gpucast/__init__.py` registers libraries and protocols by name. A library counts only
once the process has loaded it, because before that none of its arrays exist. The module with its `Library` is imported
at the first array that needs it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from gpucast.arrays.bitpacking import namespace
from gpucast.core import dtypes
from gpucast.core.dtypes import DType
from gpucast.core.rule import Options

#: ``cast(x, to, options)``: the cast of a native array.
CastFunction = Callable[[Any, Any, Options], Any]
#: `gpucast.kernel.streams.visit`, which stands above and puts itself here.
_VISIT: list[Callable[..., AbstractContextManager[None]]] = []


def register_visit(visit: Callable[..., AbstractContextManager[None]]) -> None:
    """Say how calls go to the streams of the arrays that they take."""
    _VISIT[:] = [visit]


def visit(x: Any, *others: Any, **keywords: Any) -> AbstractContextManager[None]:
    """`gpucast.kernel.streams.visit`."""
    return _VISIT[0](x, *others, **keywords)


class Lent(NamedTuple):
    """Where memory of another owner is, and who works on it."""

    device: int
    #: The stream that its owner gives work to; None for an owner who says what waits when it lends the memory.
    stream: int | None


class Library(ABC):
    """Takes arrays of one library, or of one protocol, and gives results back in the same kind.

    Native arrays are those of NumPy and CuPy, and PackedArrays. Only `take` has no default. The other defaults suit a
    library without gradients and without a compiler, whose arrays are cast one by one. `caller` begins the message of
    an error.
    """

    #: Whether memory may be used again as soon as it is given back, so that a call has to wait for the device.
    settles = False
    #: Whether its arrays share launches with ours in `gpucast.cast_many`, with memory of `empty_like`.
    batches = False

    # ---- one array ----

    def accepts(self, x: Any) -> bool:
        """Tell whether it takes `x`, an object with the attributes of the protocol. Default: always."""
        return True

    @abstractmethod
    def take(self, x: Any, caller: str, writing: bool = False) -> Any:
        """A native array over the memory of `x`; `writing` if it will be changed.

        TypeError or ValueError for an `x` whose memory cannot be read, or written.
        """

    def cast(self, cast: CastFunction, x: Any, to: Any, options: Options) -> Any:
        """Cast `x` to an array of its library; `cast` does the same for native arrays. Errors as for `gpucast.cast`.

        Default: `take`, the cast and `give_back`; ``options.out`` or `x` itself where the result is that.
        """
        with visit(x, options.out, options.scale, options.amax, device=options.device):
            array = self.take(x, options.caller)
            y = cast(array, to, options)
            if options.out is not None:
                return options.out
            return x if y is array else self.give_back(y, x, options.caller)

    def give_back(self, y: Any, like: Any, caller: str) -> Any:
        """Turn a native result into an array of the library of `like`. Default: `from_array`."""
        return self.from_array(y)

    def shape(self, x: Any) -> tuple[int, ...]:
        """The shape of the elements of `x`. Default: as NumPy finds it."""
        return np.shape(x)

    def check_scale(self, scale: Any, caller: str) -> None:  # noqa: B027 (a default)
        """Raise a ValueError for a `scale` of the library that must not multiply its arrays. Default: accept all."""

    def check_constant(self, x: Any, caller: str, instead: str) -> None:  # noqa: B027 (a default)
        """Raise a ValueError, which ends in `instead`, for an `x` whose gradient a call would lose. Default: accept
        all."""

    # ---- streams ----

    def lent(self, x: Any) -> Lent | None:
        """The device of `x`, and the stream on which its owner works; None for the host, and for an `x` that `take`
        refuses. Default: None."""
        return None

    def stream(self, device: int) -> int | None:
        """The stream, on the device of that index, where casts run and leave their results. Default: CuPy's current
        one (None)."""
        return None

    # ---- other forms ----

    def from_packed(self, x: Any) -> Any:
        """An array of the library over the memory of a PackedArray. ValueError for a shape that the library does not
        have.

        Default: TypeError, for a library without packed elements.
        """
        raise TypeError(f"PackedArray: {self._name} has no packed {x.dtype}; expected PyTorch, or pass x.data")

    def from_array(self, x: Any) -> Any:
        """Turn a native array into one of the library, where it has such arrays. Default: return it as it is."""
        return x

    def cast_array(self, cast: CastFunction, x: Any, to: Any, options: Options) -> Any:
        """Cast a native array that stands for one of the library. Default: `cast` and `from_array`."""
        y = cast(x, to, options)
        return y if y is x or options.out is not None else self.from_array(y)

    def export(self, x: Any, library: str | None = None) -> Any:
        """An object over the memory of a native array that speaks the protocol. BufferError where it cannot.

        `library`: the name of the library on whose stream the array is written.
        Default: TypeError, for a protocol that native arrays speak themselves, or do not speak.
        """
        raise TypeError(f"{type(x).__name__}: {self._name} exports no arrays; expected DLPack")

    @property
    def _name(self) -> str:
        return type(self).__name__.removesuffix("Library")

    # ---- plans ----

    def without_gradients(self, arrays: Sequence[Any], dst: DType | None = None) -> list[Any] | None:
        """The arrays without their gradients, where some have one and all are no more than that and their numbers.
        Where the library records gradients, only for casts to a `dst` that has one. Default: None, for a library
        without gradients of this kind."""
        return None

    def placed(self, arrays: Sequence[Any], writing: bool = False) -> tuple[int | None, list[int]] | None:
        """The device and the addresses of row-major arrays that are no more than their memory there, which plans may
        read, or write too. The device is None for the host, and of no arrays. Default: None, for a library without
        plans."""
        return None

    def view(self, x: Any) -> Any:
        """The numbers of an array of the host as one of NumPy, for calls that plans of NumPy's arrays do, and whose
        results `from_array` turns back. Default: None, for a library without such plans."""
        return None

    def written(self, arrays: Sequence[Any]) -> None:  # noqa: B027 (a default)
        """Called for arrays of `placed` after they were written. Default: do nothing."""

    def empty_all(self, arrays: Sequence[Any], dst: DType) -> list[Any]:
        """Memory for the casts of arrays of `placed`. No default: a library with plans has it."""
        raise NotImplementedError

    def like(self, x: Any) -> Callable[[], Any] | None:
        """A function that gives new arrays of the host like `x`, for the results of plans. Default: None, for a library
        without plans."""
        return None

    # ---- batches ----

    def empty_like(self, x: Any, dst: DType, caller: str) -> tuple[Any, Any]:
        """Memory for the cast of `x` to `dst`: the array that the caller gets, and a NumPy or CuPy array over it.
        Default: TypeError, for a library that shares no launches (`batches`)."""
        raise TypeError(f"{caller}: arrays of {self._name} share no launches; expected a library that has `empty_like`")

    def attach(self, sources: list[Any], results: list[Any], scale: Any) -> list[Any]:
        """Make the library differentiate through the results of casts. Default: return them as they are."""
        return results

    # ---- layers ----

    def cast_layer(self, cast: CastFunction, x: Any, to: Any, options: Options, coefficient: float) -> Any:
        """The cast of `x` by a layer: the gradient is cast back by the same options and multiplied by the coefficient.

        `cast` casts any array. Default: use that, for a library without gradients.
        """
        return cast(x, to, options)

    def cast_times(self, times: CastFunction, x: Any, to: Any, options: Options) -> Any:
        """Cast `x` times ``options.scale``, a number of any sign; `times` does the same for native arrays. Default: use
        that."""
        with visit(x):
            return self.cast_array(times, self.take(x, options.caller), to, options)

    # ---- compilers and transforms of functions ----

    def is_transforming(self, x: Any) -> bool:
        """Tell whether `x` stands for values that do not exist yet, and has no memory. Default: never."""
        return False

    def untraced(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that the library's compiler must not trace. Default: just call it."""
        return function(*arguments)


#: Gives a `Library`. It holds an import statement, because a compiler that traces a call follows no importlib.
Load = Callable[[], Library]


class LibraryEntry(NamedTuple):
    """A library whose arrays are of a class of its own."""

    #: Its module, and the name of the class in it.
    name: str
    array: str
    load: Load
    #: The class of its dtypes, with the module; None for a library that has those of NumPy.
    dtype: str | None = None
    #: The name of such a dtype, in words that `gpucast.dtype` takes. Default: its text.
    dtype_name: Callable[[Any], str] = str
    #: The functions that tell whether its compiler traces the call, or would trace what that calls, as paths in its
    #: module.
    is_compiling: tuple[tuple[str, ...], ...] = ()
    #: Whether `Library.from_array` makes its arrays of native ones.
    has_arrays: bool = True


class Protocol(NamedTuple):
    """A protocol, by the attributes of the objects that speak it."""

    attributes: tuple[str, ...]
    load: Load


#: By native classes whose arrays go back to another library: the `Library` of an array.
_KEPT: dict[type, Callable[[Any], Library]] = {}
#: Classes whose arrays casts take as they are; that of CuPy from its first array on.
NATIVE: set[type] = {np.ndarray}
#: What `numpy.asarray` takes without asking the object. The types themselves: a subclass may speak a protocol.
_PLAIN = frozenset({list, tuple, int, float, bool, str, bytes, type(None)})
#: The classes of native arrays that are known at once.
_OURS: tuple[type, ...] = (np.ndarray, np.generic)
#: The functions that tell whether the compiler of a loaded library is at work.
_COMPILING: dict[str, list[Callable[[], Any]]] = {}
#: Functions of extensions for arrays of one library, by the names of both; each entry gives the function.
_FUNCTIONS: dict[tuple[str, str], Callable[[], Callable[..., Any]]] = {}
#: Modules of libraries, by name, as `enter` got them: PyTorch's compiler copies all of `sys.modules` where it
#: is asked for one, and fails if an import changes it meanwhile.
LOADED: dict[str, Any] = {}
#: Their `Library`.
_ENTERED: dict[str, Library] = {}
#: In the order of search. Libraries come before protocols, because their arrays may speak a protocol, too.
_LIBRARIES: list[LibraryEntry] = []
_PROTOCOLS: list[Protocol] = []


def register(*entries: LibraryEntry | Protocol) -> None:
    """Add libraries and protocols."""
    for entry in entries:
        if isinstance(entry, Protocol):
            _PROTOCOLS.append(entry)
            continue
        _LIBRARIES.append(entry)
        if entry.dtype is not None:
            module, _, name = entry.dtype.rpartition(".")
            dtypes.FOREIGN[module, name] = entry.dtype_name


def enter(name: str, module: Any, library: Library) -> None:
    """Called where the module of a library of ours has been loaded."""
    LOADED[name], _ENTERED[name] = module, library


def register_ours(kind: type, library: Callable[[Any], Library] | None = None) -> None:
    """Register a class of native arrays. It comes before every protocol. `library` gives the `Library` of an
    array, which returns results in its kind.
    """
    global _OURS  # noqa: PLW0603 (isinstance takes a tuple)
    _OURS = (*_OURS, kind)
    if library is not None:
        _KEPT[kind] = library


def extend(library: str, name: str, load: Callable[[], Callable[..., Any]]) -> None:
    """Add a function of an extension for the arrays of a library. `load` gives it, as `Load` gives a library."""
    _FUNCTIONS[library, name] = load


def function_of(x: Any, name: str) -> Callable[..., Any] | None:
    """The function of that name which an extension has for the library of `x`, or None."""
    load = _FUNCTIONS.get((library_of(x) or "", name))
    return None if load is None else load()


def find(x: Any) -> Library | None:
    """The library of `x`, or None if `x` is not an array of another library."""
    kind = type(x)
    if kind in NATIVE:
        return None
    if kind in _PLAIN or isinstance(x, _OURS):
        of_kind = _KEPT.get(kind)
        return None if of_kind is None else of_kind(x)
    entry = _library(x)
    if entry is not None:
        return _ENTERED.get(entry.name) or entry.load()
    module = namespace(x)
    if module is not None:
        if kind is module.ndarray:
            NATIVE.add(kind)
        return None
    for protocol in _PROTOCOLS:
        if all(_speaks(x, attribute) for attribute in protocol.attributes):
            library = protocol.load()
            if library.accepts(x):
                return library
    return None


def with_arrays() -> tuple[str, ...]:
    """The names of the registered libraries in whose arrays a result can be asked for."""
    return tuple(library.name for library in _LIBRARIES if library.has_arrays)


def library_of(x: Any) -> str | None:
    """The name of the registered library whose array `x` is."""
    kind = type(x)
    library = None if kind in NATIVE or kind in _PLAIN or isinstance(x, _OURS) else _library(x)
    return None if library is None else library.name


def _library(x: Any) -> LibraryEntry | None:
    for library in _LIBRARIES:
        module = LOADED.get(library.name) or sys.modules.get(library.name)
        if module is not None and isinstance(x, getattr(module, library.array, ())):
            return library
    return None


def of_library(name: str) -> Library:
    """A registered library, loaded or not. ImportError if the library is not installed, ValueError for
    another name."""
    for library in _LIBRARIES:
        if library.name == name:
            return library.load()
    names = ", ".join(map(repr, with_arrays()))
    raise ValueError(f"library={name!r} is not known; expected one of {names}")


def of_protocol(attribute: str) -> Library:
    """The `Library` of a registered protocol, by one of its attributes."""
    return next(protocol for protocol in _PROTOCOLS if attribute in protocol.attributes).load()


def untraced(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, which no library's compiler looks into: it would take NumPy's arrays for its own."""
    library = compiler()
    # Not within the loop there: torch.compile leaves a function alone whose graph would break within a loop, and goes
    # on with what that calls.
    return function(*arguments) if library is None else library.untraced(function, *arguments)


def compiler() -> Library | None:
    """The library whose compiler traces this call or its callees."""
    for library in _LIBRARIES:
        if library.is_compiling and (library.name in LOADED or library.name in sys.modules):
            for asked in _COMPILING.get(library.name) or _is_compiling(library):
                if asked():
                    return library.load()
    return None


def _is_compiling(library: LibraryEntry) -> list[Callable[[], Any]]:
    """The functions that tell of the library's compiler; none while it is not loaded."""
    found: list[Any] = []
    for path in library.is_compiling:
        asked: Any = LOADED.get(library.name) or sys.modules.get(library.name)
        for name in path:
            asked = getattr(asked, name, None)
        found.append(asked)
    if None not in found:
        # A search takes longer than a call.
        _COMPILING[library.name] = found
    return [asked for asked in found if asked is not None]


def _speaks(x: Any, attribute: str) -> bool:
    """Tell whether an instance has the attribute. Some classes have it, but raise for memory that is not theirs."""
    try:
        return getattr(x, attribute, None) is not None
    except Exception:
        return False
