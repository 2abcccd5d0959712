# SPDX-License-Identifier: Apache-2.0
"""Plans of calls on devices: the launches of an earlier call, repeated.

They serve arrays of CuPy, or of a library that says where they are (`Library.placed`), on the current device, that lie
as those of that call did; `gpucast.kernel.recording` says how alike. Of a function they know which arrays a call reads,
and what else decides on its launches (`Asked`). Results, and an `out`, are arrays, dataclasses of arrays such as
`Quantized`, or tuples of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from gpucast import casting, kernel
from gpucast.arrays import libraries
from gpucast.arrays.packed import LibraryPackedArray, PackedArray
from gpucast.casting import plans
from gpucast.core.dtypes import DType
from gpucast.core.extension import MODULE
from gpucast.core.fuse import NO_WORDS, Random
from gpucast.kernel.recording import Given, Memory, Program, Recording, placed, program
from gpucast.quantization.call_choices import NO_SIGNS, Signs

#: The most kinds of arrays of a plan, and entries of a shape.
_MOST, _MOST_ENTRIES = 256, 8


class Asked(NamedTuple):
    """What a call asks for, beside the class and dtype of x and the arguments by which plans are found."""

    #: The arrays that it reads, the first one first.
    read: Sequence[Any]
    out: Any = None
    #: What else decides on its launches.
    key: Any = None
    random: Random | None = None
    #: Arrays that it reads and writes.
    updated: Sequence[Any] = ()
    #: The form of what the first arrays are the parts of.
    form: Any = None
    #: A `Quantized` with the memory that calls keep which write an `out`, and the name of the function.
    keeper: Any = None
    caller: str = ""
    #: The signs of a transform; a scale and a magnitude as numbers or arrays, the latter among those that are read.
    signs: Signs = NO_SIGNS
    numbers: tuple[Any, Any] = (None, None)

    @property
    def plan_key(self) -> tuple[Any, ...]:
        return self.key, self.out is None, *[x.shape for x in self.read]


#: Of the first array, and of the arguments by which no plan is found; None for a call that no plan is for.
Ask = Callable[..., Asked | None]


class _Packed(NamedTuple):
    """The place of packed elements in a result."""

    kind: type
    dtype: DType
    shape: tuple[int, ...]


class _Place(NamedTuple):
    """How an array of a new result lies in the new memory of that number: as an array of its own, or None for as it is;
    and the dtype and shape of packed elements."""

    number: int
    as_array: Memory | None
    packed: tuple[DType, tuple[int, ...]] | None

    def of(self, made: Sequence[Any], library: libraries.Library | None) -> Any:
        data = made[self.number]
        if self.as_array is not None:
            shape, kind, strides = self.as_array
            data = type(data)(shape, kind, data.data, strides)
        if self.packed is not None:
            array: Any = object.__new__(PackedArray)
            array.data, (array.dtype, array.shape) = data, self.packed
            data = array
        return data if library is None else library.from_array(data)


def flat(result: Any, arrays: list[Any]) -> Any:
    """The form of a result: equal to that of one that consists of arrays in the same way. They are added to a list."""
    kind: Any = type(result)
    sort = _SORTS.get(kind) or _sort(kind)
    if sort == "array":
        arrays.append(result)
        return kind
    if sort == "packed":
        arrays.append(result.data)
        return _Packed(kind, result.dtype, result.shape)
    if sort == "tuple":
        return kind, [flat(one, arrays) for one in result]
    if sort == "none":
        return None
    own = vars(result)
    forms: list[Any] = []
    for name in _PARTS:
        part = own[name]
        # Most parts are arrays: another call takes longer.
        if _SORTS.get(type(part)) == "array":
            arrays.append(part)
            forms.append(type(part))
        else:
            forms.append(None if part is None else flat(part, arrays))
    return kind, forms, [own[name] for name in _ATTRIBUTES]


#: By class. The classes of results are few.
_SORTS: dict[type, Literal["none", "array", "packed", "tuple", "parts"]] = {type(None): "none"}


def is_record(kind: type) -> bool:
    """Whether a class is that of results with parts, and no class of its own that a caller made of it."""
    return "__dataclass_fields__" in kind.__dict__ and kind.__bases__ == (object,)


def _sort(kind: Any) -> str:
    if len(_SORTS) > _MOST:
        _SORTS.clear()
    found: Any = "packed" if issubclass(kind, PackedArray) else "tuple" if issubclass(kind, tuple) else "array"
    if is_record(kind):
        found = "parts"
    _SORTS[kind] = "none" if kind is type(None) else found
    return _SORTS[kind]


#: Of `gpucast.Quantized`.
_PARTS = ("data", "scales", "zero_points", "global_scale")
_ATTRIBUTES = ("format", "dtype", "axis", "scale_layout", "library")


def _build(form: Any, parts: Iterator[Any]) -> Any:
    """A result of that form of the next parts."""
    if form is None:
        return None
    if type(form) is tuple:
        kind, forms, *more = form
        if more:
            result = object.__new__(kind)
            # Past __init__, whose checks take longer than all else here.
            own = vars(result)
            own.update(zip(_ATTRIBUTES, more[0], strict=True))
            own.update((name, _build(one, parts)) for name, one in zip(_PARTS, forms, strict=True))
            return result
        found = [_build(one, parts) for one in forms]
        return tuple(found) if kind is tuple else kind._make(found)
    return next(parts)


class _Known(NamedTuple):
    """What calls with arrays of a kind need."""

    program: Program
    device: int
    #: Of the arrays; None for CuPy.
    library: libraries.Library | None
    given: tuple[Given, ...]
    #: The names of a workspace's arrays.
    kept: tuple[Any, ...]
    #: Of `Asked`.
    read_form: Any
    #: The form of the result, or of an `out`; and for a new result the places of its arrays.
    form: Any
    places: tuple[_Place, ...] | None

    def serve(self, asked: Asked) -> Any:
        """Repeat the call; None, nothing done, where only the checked path can tell."""
        cuda = kernel.driver.driver()
        given = [*asked.read, *asked.updated]
        if asked.form != self.read_form or (asked.out is not None and flat(asked.out, given) != self.form):
            return None
        if cuda.current() != self.device or len(given) != len(self.given):
            return None
        if self.library is None:
            return self._launch(asked, given)
        # Of a library, on its current stream.
        for x, known in zip(given, self.given, strict=True):
            # What the library lacks is packed in an array of CuPy.
            if type(x) is not known.kind or x.shape != known.shape or x.dtype != known.dtype:
                return None
        found = placed(given, self.library, len(asked.read))
        # Of what has no elements the address tells nothing.
        if found is None or found[0] != self.device or 0 in found[1]:
            return None
        stream = self.library.stream(self.device)
        if stream is None:
            return None
        with cuda.using(stream, self.device):
            result = self._launch(asked, found[1])
        if result is not None:
            self.library.written(given[len(asked.read) :])
        return result

    def _launch(self, asked: Asked, given: list[Any]) -> Any:
        def new() -> tuple[list[Any], list[int]] | None:
            if repeated.new and cuda.capturing():
                return None
            others: list[int] = []
            if self.kept:
                workspace = asked.keeper.workspace(asked.caller)
                for name in self.kept:
                    held = workspace.kept(name)
                    if held is None:
                        return None
                    others.append(casting.cuda.address(held))
            if repeated.cells or repeated.numbers:
                of_stream = casting.cuda.Workspace(asked.caller, self.device)
                others += [of_stream.cell().data.ptr] * repeated.cells if repeated.cells else []
                others += [of_stream.number(value).data.ptr for value in repeated.numbers]
            made = [cuda.empty(*one) for one in repeated.new]
            others += [one.data.ptr for one in made]
            return made, others

        cuda, repeated = kernel.driver.driver(), self.program
        made = MODULE.repeat(repeated.launches, given, new, *(asked.random or NO_WORDS), 1.0)
        if made is None or self.places is None:
            return None if made is None else asked.out
        return _build(self.form, iter([place.of(made, self.library) for place in self.places]))


class CudaPlan:
    """What calls keep that differ in their arrays alone, and in what `ask` finds of them."""

    def __init__(self, ask: Ask, kind: Literal["quantized", "dequantized", ""]) -> None:
        #: By the shape of the first array those for the module, of calls that choose nothing else; the latest first.
        self.entries: dict[Any, list[tuple[Any, ...]]] = {}
        #: The same by what was asked.
        self.own: dict[Any, dict[Any, tuple[Any, ...]]] = {}
        self.ask, self.kind = ask, kind
        self.plan = plans.make(kind, self.run, kernels=self.entries if kind else None)
        self.known: dict[tuple[Any, ...], _Known] = {}

    def run(self, *arguments: Any) -> Any:
        asked = self.ask(*arguments)
        if asked is None:
            return None
        known = self.known.get(asked.plan_key)
        return None if known is None else known.serve(asked)

    def keep(self, arguments: Sequence[Any], recording: Recording, result: Any, name: str | None) -> Any:
        """Keep a call, if it can be repeated: the plan, or None. `name`: of the library of its arrays."""
        asked = self.ask(*arguments)
        known = None if asked is None else _known(asked, recording, result, name)
        if asked is None or known is None:
            return None
        if len(self.known) >= _MOST:
            self.known.clear()
            self.own.clear()
            self.entries.clear()
        self.known[asked.plan_key] = known
        is_quantized = self.kind == "quantized"
        entry = _entry(asked, known, result, result if is_quantized else arguments[0]) if self.kind else None
        if entry is not None:
            shape = asked.read[0].shape if is_quantized else arguments[0].data.shape
            own = self.own.setdefault(shape, {})
            own.pop(asked.plan_key, None)
            if len(own) == _MOST_ENTRIES:
                del own[next(iter(own))]
            own[asked.plan_key] = entry
            self.entries[shape] = [*reversed(own.values())]
        return self.plan


def _entry(asked: Asked, known: _Known, result: Any, q: Any) -> tuple[Any, ...] | None:
    """A call of CuPy's arrays that quantized to `q`, or dequantized it, for the module (``results.hpp``); None
    for one that it does not serve."""
    if known.library is not None or not is_record(type(q)) or asked.random is not None or asked.updated:
        return None
    cuda = kernel.driver.driver()
    array: Any = type(asked.read[0])
    makes: list[Any] = [None] * len(_PARTS)
    parts = [getattr(q, name) for name in _PARTS] if q is result else [result]
    places: list[Any] = [partial(_kept_address, asked.caller, name) for name in known.kept]
    places += [partial(casting.cuda.cell_address, asked.caller, known.device)] * known.program.cells
    places += [partial(casting.cuda.number_address, asked.caller, known.device, one) for one in known.program.numbers]
    if known.places is not None:
        # All new memory is that of the parts.
        numbers = [place.number for place in known.places]
        if sorted(numbers) != list(range(len(known.program.new))):
            return None
        there = [i for i, part in enumerate(parts) if part is not None]
        places += [there[numbers.index(i)] for i in range(len(numbers))]
        makes = [None if part is None else _make(part, array, cuda) for part in parts]
    attributes = {name: getattr(q, name) for name in _ATTRIBUTES}
    codes = type(q.data), isinstance(q.data, PackedArray), q.data.shape
    new = tuple(makes) if q is result else makes[0]
    look = (object, None, None) if q is result else (type(result), result.dtype, result.shape)
    given = tuple(array if type(one) is array else one for one in asked.numbers)
    more = *asked.signs, None, given
    return known.program.launches, cuda.capturing, type(q), attributes, *codes, new, *look, tuple(places), *more


def _kept_address(caller: str, key: Any, keeper: Any) -> int | None:
    held = keeper.workspace(caller).kept(key)
    return None if held is None else int(casting.cuda.address(held))


def _make(part: Any, array: type, cuda: Any) -> tuple[Any, ...]:
    """How the module makes arrays on a device like a part."""
    if isinstance(part, PackedArray):
        more = type(part), {"dtype": part.dtype, "shape": part.shape}
        return part.data.dtype, part.data.shape, cuda.allocate, array, *more
    return part.dtype, part.shape, cuda.allocate, array


def _known(asked: Asked, recording: Recording, result: Any, name: str | None) -> _Known | None:
    library = None if name is None else libraries.of_library(name)
    arrays: list[Any] = []
    form, parts = flat(result, arrays), _parts(result)
    written = [*asked.updated, *(() if asked.out is None else arrays)]
    # Another library's arrays may be in use on another stream.
    if any(library_of(one) != name for one in (*asked.updated, *parts)):
        return None
    given = [*asked.read, *written]
    at = placed(given, library, len(given))
    if at is None or (library is not None and 0 in at[1]):
        return None
    device = at[0]
    own = [Given(type(x), x.shape, x.dtype, int(x.nbytes), one) for x, one in zip(given, at[1], strict=True)]
    workspace = None if asked.keeper is None or asked.out is None else asked.keeper.workspace(asked.caller)
    held = {} if workspace is None else dict(workspace.items())
    kept = [(casting.cuda.address(one), int(one.nbytes)) for one in held.values()]
    found = program(recording, own, len(asked.read), kept, device, asked.random)
    if found is None:
        return None
    places = None if asked.out is not None else [_place(part, recording.made, library) for part in parts]
    if places is not None and None in places:
        return None
    known: Any = None if places is None else tuple(places)
    return _Known(found, device, library, tuple(own), tuple(held), asked.form, form, known)


def _parts(result: Any) -> list[Any]:
    """The arrays of a result as they are, PackedArrays among them."""
    sort = _sort(type(result))
    if sort == "parts":
        return [part for name in _PARTS for part in _parts(getattr(result, name))]
    if sort == "tuple":
        return [part for one in result for part in _parts(one)]
    return [] if sort == "none" else [result]


def library_of(part: Any) -> str | None:
    """The name of the library whose array, or stands for whose array, a part is."""
    return part.library if isinstance(part, LibraryPackedArray) else libraries.library_of(part)


def _place(part: Any, made: Sequence[Any], library: libraries.Library | None) -> _Place | None:
    """Where an array of a new result lies in the new memory; None for one that lies elsewhere."""
    data = part.data if isinstance(part, PackedArray) else part
    at = placed([data], library, 1)
    if at is None:
        return None
    packed = (part.dtype, part.shape) if isinstance(part, PackedArray) else None
    for number, one in enumerate(made):
        if one.data.ptr != at[1][0] or one.nbytes != part.nbytes:
            continue
        if library is not None and packed is None:
            # As the library gets it from an array of CuPy.
            native = library.take(part, "plan")
            packed = (native.dtype, native.shape) if isinstance(native, PackedArray) else None
            data = native.data if isinstance(native, PackedArray) else native
        same = (one.shape, one.dtype, one.strides) == (data.shape, data.dtype, data.strides)
        return _Place(number, None if same else Memory(data.shape, data.dtype, data.strides), packed)
    return None
