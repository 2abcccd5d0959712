# SPDX-License-Identifier: Apache-2.0
"""Parses the values of options, with errors that list the accepted ones. Adds the options for the attributes of a cast,
and opens the files that options name.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar

from gpucast.core import dtypes
from gpucast.core.dtypes import DType
from gpucast.core.rounding import ROUNDING_MODES, STOCHASTIC
from gpucast.core.rule import ATTRIBUTES, DEFAULT_OPSET, ROUND_MODES
from gpucast.files.atomic import replacing

T = TypeVar("T")
#: All values are text.
_TEXT: Mapping[str, Callable[[str], Any]] = {}


def add_options(parser: Any, rows: str, kinds: Mapping[str, Callable[[str], Any]] = _TEXT) -> None:
    """Add options to a parser, or to a group, from rows that read like its help.

    A row is ``--flag  help``, ``--name VALUE  help`` or ``--name one|other  help``, where a value may be followed by
    "..." (the option may be repeated), "+" (it takes several) or "= default". Further lines of a row are indented.
    `kinds` says how the values of a name or of an option are read, such as "N"; others are text.
    """
    for row in re.findall(r"^--.*(?:\n +.*)*", rows, re.MULTILINE):
        spec, _, help = row.partition("  ")
        spec, _, default = spec.partition(" = ")
        name, value, repeated = (*spec.split(" "), "", "")[:3]
        more: dict[str, Any] = {"default": default} if default else {}
        if not value:
            more["action"] = "store_true"
        elif "|" in value:
            more["choices"] = value.split("|")
        else:
            more |= {"metavar": value, "type": kinds.get(name, kinds.get(value))}
        if repeated:
            more |= {"action": "append", "default": []}
        if repeated == "+":
            more |= {"action": "extend", "nargs": "+"}
        parser.add_argument(name, help=" ".join(help.split()), **more)


def _words(family: str) -> str:
    words = [mode.word for mode in ROUNDING_MODES if getattr(mode, family) and mode.word != STOCHASTIC]
    return f"{', '.join(words[:-1])} or {words[-1]}"


_ATTRIBUTES = f"""\
--round-mode {"|".join(ROUND_MODES)} = up  rounding to FLOAT8E8M0 (default: %(default)s)
--opset OPSET  follow the ONNX Cast of this opset (default: {DEFAULT_OPSET}, and types that no opset has)
--rounding {"|".join(mode.word for mode in ROUNDING_MODES)}  integers: {_words("integers")} (default: truncate).
    Floats: {_words("floats")} (default: nearest_even); of 16 bits or fewer also stochastic
--overflow saturate|wrap  out of range: the nearest number of the type; low bits (integers' default)
"""


def add_attributes(parser: Any) -> None:
    """Add an option for each attribute of a cast to a parser, or to a group."""
    parser.add_argument(
        "--saturate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="out of range in 8-bit floats: clamp (default), or give infinity or NaN",
    )
    add_options(parser, _ATTRIBUTES, {"OPSET": int})


def attributes_of(args: argparse.Namespace) -> dict[str, Any]:
    """The given attributes, as keywords of `gpucast.cast`."""
    return {name: getattr(args, name) for name in ATTRIBUTES}


def reader(read: Callable[[str], T], more: str = "") -> Callable[[str], T]:
    """A type for argparse: `read`, whose errors, followed by `more`, are the message."""

    def checked(text: str) -> T:
        try:
            return read(text)
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"{error}{more}") from None

    return checked


#: The type that an option names.
dtype = reader(lambda text: dtypes.dtype(int(text) if text.isdecimal() else text, caller=""))


def numeric(text: str) -> DType:
    """A numeric type: only these have kernels."""
    kind = dtype(text)
    if kind.family == "string":
        raise argparse.ArgumentTypeError(f"{text!r} is cast on the host only; expected a numeric type")
    return kind


def pair(text: str) -> tuple[DType, DType]:
    names = text.split(":")
    if len(names) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pair; expected SRC:DST such as FLOAT:INT8")
    src, dst = map(numeric, names)
    return src, dst


def count(text: str) -> int:
    return _number(text, 0)


def at_least_one(text: str) -> int:
    return _number(text, 1)


def size(text: str) -> int:
    """Bytes: "5GB" is 5 * 10^9 of them, "5GiB" 5 * 2^30."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?", text, re.IGNORECASE)
    if found is not None and (found[2] or not found[3]):
        base = 1024 if found[3] else 1000
        number = float(found[1]) * base ** " KMGT".index(found[2].upper() or " ")
        if 1 <= number < 1 << 63:
            return int(number)
    raise argparse.ArgumentTypeError(f"{text!r} is no size; expected bytes as 5000000, 5GB or 4GiB")


def _number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return int(text)


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


@contextlib.contextmanager
def created(path: str | None) -> Iterator[BinaryIO | None]:
    """A file that appears when the block has ended. An error is raised at once if it cannot be written.

    /dev/null takes all and keeps nothing.
    """
    if path is None:
        yield None
        return
    if path == os.devnull:
        with open(path, "wb") as nothing:
            yield nothing
        return
    with replacing(path) as file:
        yield file
