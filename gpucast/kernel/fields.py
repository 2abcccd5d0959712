# SPDX-License-Identifier: Apache-2.0
"""Structs that Python fills and C++ reads, each from one table: it writes the C++ struct and packs its bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

#: The codes of `struct` for C++ types, which are those of NumPy as well; every pointer is an address.
_CODES = {"u8": "B", "u32": "I", "int": "i", "float": "f", "u64": "Q", "i64": "q", "double": "d"}
_ADDRESS = "Q"


class Field(NamedTuple):
    """A row of a table."""

    name: str
    #: The C++ type, or the table of another struct.
    type: str | Fields
    #: Of an array: a number, or the parameter of the template.
    length: int | str | None = None


class Place(NamedTuple):
    """Where a field lies in the bytes of a struct."""

    name: str
    type: str | Fields
    #: Of an array.
    length: int | None
    offset: int

    @property
    def times(self) -> int:
        return 1 if self.length is None else self.length

    @property
    def end(self) -> int:
        return self.offset + _nbytes(self.type) * self.times

    @property
    def zeros(self) -> tuple[int, ...]:
        """As many as the field has values."""
        values = sum(len(place.zeros) for place in self.type.places) if isinstance(self.type, Fields) else 1
        return (0,) * (values * self.times)


@dataclass(frozen=True, eq=False)
class Fields:
    """The table of a struct. Values are packed in the order of the rows, those of inner structs and arrays in place."""

    name: str
    #: Each is a `Field`, or the start of one.
    rows: tuple[tuple[Any, ...], ...]
    #: The parameter of a struct that is a template: the length of some of its arrays, and of those of inner structs.
    parameter: str = ""
    #: The value of the parameter, without which nothing can be packed.
    size: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Fields) and self._own == other._own)

    def __hash__(self) -> int:
        return hash((self.name, self.size))

    def __reduce__(self) -> tuple[Any, ...]:
        return Fields, self._own

    @property
    def _own(self) -> tuple[Any, ...]:
        return self.name, self.rows, self.parameter, self.size

    def of(self, size: int) -> Fields:
        """The template with a value of its parameter."""
        return _of(self, size)

    # ---- C++ ----

    @property
    def type(self) -> str:
        """The name of the type in the namespace gpucast."""
        if not self.parameter:
            return self.name
        return f"{self.name}<{self.parameter if self.size is None else self.size}>"

    @cached_property
    def text(self) -> str:
        """The C++ struct."""
        lines = []
        for row in self.rows:
            name, kind, length = Field(*row)
            written = kind if isinstance(kind, str) else kind.type
            lines.append(f"    {written} {name}{'' if length is None else f'[{length}]'};\n")
        head = f"template <u32 {self.parameter}>\n" if self.parameter else ""
        return f"namespace gpucast {{\n{head}struct {self.name} {{\n{''.join(lines)}}};\n}}  // namespace gpucast\n"

    # ---- bytes ----

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where the fields lie, as a C++ compiler places them."""
        found: list[Place] = []
        for row in self.rows:
            name, kind, length = Field(*row)
            if isinstance(kind, Fields) and kind.parameter and kind.size is None:
                kind = kind.of(self._size)
            end = found[-1].end if found else 0
            offset = -(-end // _alignment(kind)) * _alignment(kind)
            found.append(Place(name, kind, self._size if isinstance(length, str) else length, offset))
        return tuple(found)

    @cached_property
    def alignment(self) -> int:
        return max(_alignment(place.type) for place in self.places)

    @cached_property
    def nbytes(self) -> int:
        return -(-self.places[-1].end // self.alignment) * self.alignment

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The first byte of each field."""
        return {place.name: place.offset for place in self.places}

    @cached_property
    def layout(self) -> struct.Struct:
        """The struct for the module of that name, with its padding."""
        return struct.Struct(f"<{''.join(self._codes())}")

    @cached_property
    def pack(self) -> Callable[..., bytes]:
        """``pack(*values)``: the bytes of all values, in order."""
        return self.layout.pack

    def fill(self, **values: Any) -> bytes:
        """The bytes of some values by name, and zeros for all others; a tuple for an array or an inner struct."""
        unknown = sorted(values.keys() - self.offsets.keys())
        if unknown:
            raise TypeError(f"{self.name}: no field is named {unknown[0]}; expected one of {', '.join(self.offsets)}")
        given = (values.get(place.name, place.zeros) for place in self.places)
        return self.pack(*(each for value in given for each in (value if isinstance(value, tuple) else (value,))))

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The struct for NumPy."""
        kinds = [
            place.type.dtype if isinstance(place.type, Fields) else np.dtype(f"<{_code(place.type)}")
            for place in self.places
        ]
        return np.dtype(
            {
                "names": list(self.offsets),
                "formats": [
                    kind if place.length is None else (kind, place.length)
                    for kind, place in zip(kinds, self.places, strict=True)
                ],
                "offsets": list(self.offsets.values()),
                "itemsize": self.nbytes,
            }
        )

    @property
    def _size(self) -> int:
        assert self.size is not None, f"{self.name} has no value of {self.parameter}"
        return self.size

    def _codes(self) -> Iterator[str]:
        end = 0
        for place in self.places:
            yield f"{place.offset - end}x"
            if isinstance(place.type, Fields):
                yield place.type.layout.format[1:] * place.times
            else:
                yield f"{place.times}{_code(place.type)}"
            end = place.end
        yield f"{self.nbytes - end}x"


@lru_cache(maxsize=256)
def _of(fields: Fields, size: int) -> Fields:
    return replace(fields, size=size)


def _code(kind: str) -> str:
    return _ADDRESS if kind.endswith("*") else _CODES[kind]


def _nbytes(kind: str | Fields) -> int:
    return kind.nbytes if isinstance(kind, Fields) else struct.calcsize(f"<{_code(kind)}")


def _alignment(kind: str | Fields) -> int:
    return kind.alignment if isinstance(kind, Fields) else _nbytes(kind)
