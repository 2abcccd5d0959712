# SPDX-License-Identifier: Apache-2.0
"""Computes terms with NumPy for whole arrays of inputs: proof by exhaustion."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.proof.terms import BRAIN, HALF, INTEGERS, SINGLE, TWICE, Format, Term, in_order, infinity

NDArray = npt.NDArray[Any]


def evaluate(root: Term, inputs: Mapping[Term, NDArray]) -> NDArray:
    """The values of a term for given values of its variables. IndexError for a look-up outside its memory."""
    return Program(root)(inputs)


class Program:
    """A term that is ready to be computed again and again."""

    def __init__(self, root: Term) -> None:
        order = in_order(root)
        place = {term: number for number, term in enumerate(order)}
        self.variables = [(place[term], term) for term in order if term.op == "var"]
        self._values: list[Any] = [
            np.array(term.param, _kind(term.width)) if term.op == "const" else None for term in order
        ]
        self._steps = [
            (place[term], _step(term), [place[arg] for arg in term.args])
            for term in order
            if term.op not in ("var", "const")
        ]

    def __call__(self, inputs: Mapping[Term, NDArray]) -> NDArray:
        values = list(self._values)
        for number, term in self.variables:
            values[number] = np.asarray(inputs[term]).astype(_kind(term.width))
        with np.errstate(all="ignore"):
            return self._run(values)

    def of(self, *given: NDArray) -> NDArray:
        """The values for those of `variables`, in their order, which are of the kind that the widths ask for. The
        caller has NumPy ignore what it warns of."""
        values = list(self._values)
        for (number, _), one in zip(self.variables, given, strict=True):
            values[number] = one
        return self._run(values)

    def _run(self, values: list[Any]) -> NDArray:
        for number, compute, args in self._steps:
            values[number] = compute(*[values[arg] for arg in args])
        return np.asarray(values[-1])


def _step(term: Term) -> Callable[..., NDArray]:
    """What computes a term from the values of its arguments, cut to its width."""
    compute, width = _OPERATIONS[term.op], term.width
    if max(width, *(arg.width for arg in term.args)) <= 64:
        if term.op in INTEGERS:
            integers, mask = INTEGERS[term.op], np.uint64((1 << width) - 1)
            return integers if term.op in _WITHIN or width == 64 else lambda *args: integers(*args) & mask
        if term.op in ("shl", "lshr") and term.args[1].constant:
            return _narrow_shift(term.op, width, int(term.args[1].param))
        if term.op in ("eq", "ult"):
            holds = operator.eq if term.op == "eq" else operator.lt
            return lambda a, b: holds(a, b).astype(np.uint64)
        if term.op in _WITHIN:
            return lambda *args: compute(term, *args)
        if term.op == "part":
            return _narrow_part(term.param, width, term.args[0].width)
        if term.op == "join":
            return _narrow_join([arg.width for arg in term.args])
    return lambda *args: _cut(np.asarray(compute(term, *args)), width)


def _narrow_part(at: int, width: int, of: int) -> Callable[[NDArray], NDArray]:
    by, mask = np.uint64(at), np.uint64((1 << width) - 1)
    if at == 0:
        return lambda a: a & mask
    return (lambda a: a >> by) if at + width == of else (lambda a: a >> by & mask)


def _narrow_shift(op: str, width: int, by: int) -> Callable[..., NDArray]:
    places, mask = np.uint64(min(by, 63)), np.uint64((1 << width) - 1 if by < width else 0)
    return (lambda a, _: a << places & mask) if op == "shl" else (lambda a, _: a >> places & mask)


def _narrow_join(widths: list[int]) -> Callable[..., NDArray]:
    places = [np.uint64(sum(widths[:number])) for number in range(1, len(widths))]

    def join(first: NDArray, *others: NDArray) -> NDArray:
        for value, place in zip(others, places, strict=True):
            first = first | value << place
        return first

    return join


def _kind(width: int) -> Any:
    return np.uint64 if width <= 64 else object


def _cut(found: NDArray, width: int) -> NDArray:
    if width > 64:
        return np.asarray(found.astype(object) & ((1 << width) - 1), object)
    if found.dtype == object:
        found = np.asarray(found & ((1 << width) - 1))
    if found.dtype != np.uint64:
        found = found.astype(np.uint64)
    return found if width == 64 else np.asarray(found & np.uint64((1 << width) - 1))


def _signed(a: NDArray, width: int) -> NDArray:
    """Read codes as two's complement."""
    if a.dtype == object:
        return np.asarray(a - ((a >> (width - 1)) << width), object)
    spare = np.uint64(64 - width)
    return np.asarray((a << spare).view(np.int64) >> spare.astype(np.int64))


def _join(term: Term, *parts: NDArray) -> NDArray:
    found, at = np.zeros((), object), 0
    for piece, value in zip(term.args, parts, strict=True):
        found = np.asarray(found | value.astype(object) << at)
        at += piece.width
    return found


def _shift(term: Term, a: NDArray, by: NDArray) -> NDArray:
    width, top = term.width, term.width - 1
    if width > 64:
        a, by = a.astype(object), np.minimum(by.astype(object), width)
        return np.asarray(a << by if term.op == "shl" else (a if term.op == "lshr" else _signed(a, width)) >> by)
    out, by = by > top, np.minimum(by, np.uint64(top))
    if term.op == "ashr":
        return np.asarray(_signed(a, width) >> by.astype(np.int64))
    return np.where(out, np.uint64(0), a << by if term.op == "shl" else a >> by)


def _ite(_: Term, condition: NDArray, a: NDArray, b: NDArray) -> NDArray:
    return np.where(condition != 0, a, b)


def _udiv(term: Term, a: NDArray, b: NDArray) -> NDArray:
    every = np.array((1 << term.width) - 1, a.dtype)
    return np.where(b == 0, every, a // np.maximum(b, 1))


def _look_up(term: Term, at: NDArray) -> NDArray:
    base, memory = term.param
    size = term.width // 8
    offset = at.astype(np.int64) - base
    if np.any((offset < 0) | (offset + size > len(memory)) | (offset % size != 0)):
        raise IndexError("a look-up reads outside of its table, or across its entries")
    return np.asarray(np.frombuffer(memory, f"<u{size}", len(memory) // size)[offset // size])


def _search(term: Term, key: NDArray) -> NDArray:
    bounds, values = term.param
    found = np.searchsorted(np.array(bounds, np.uint64), key, side="right")
    return np.array(values, _kind(term.width))[found]


# ---- floating point, computed as float64 ----


def decode(bits: NDArray, form: Format) -> NDArray:
    """The exact values of codes."""
    if form == TWICE:
        return bits.astype(np.uint64).view(np.float64)
    if form == HALF:
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    wide = bits << np.uint64(16) if form == BRAIN else bits
    return wide.astype(np.uint32).view(np.float32).astype(np.float64)


#: The types of NumPy to which it rounds a float64 to nearest, and the NaN of the PTX manual.
_ROUNDED = {SINGLE: (np.float32, np.uint64(0x7FFFFFFF)), HALF: (np.float16, np.uint64(0x7FFF))}


def encode(x: NDArray, form: Format, mode: str) -> NDArray:
    """Round values to codes by a mode, "rp" only if they are not negative. NaN becomes the NaN of the PTX manual."""
    if form == TWICE:
        return np.where(np.isnan(x), np.uint64(0x7FF8 << 48), x.view(np.uint64))
    if mode == "rn" and form in _ROUNDED:
        kind, nan = _ROUNDED[form]
        # NumPy rounds a float64 once.
        return np.where(np.isnan(x), nan, x.astype(kind).view(f"u{kind().itemsize}").astype(np.uint64))
    bits, (exponent_bits, digits) = sum(form), form
    bias = (1 << (exponent_bits - 1)) - 1
    finite = np.where(np.isfinite(x), x, 0.0)
    lowest = 2 - bias - digits
    step = np.where(finite == 0, lowest, np.maximum(np.frexp(finite)[1] - digits, lowest))
    whole = np.ldexp(np.abs(finite), -step)
    roundings: dict[str, Callable[[NDArray], NDArray]] = {
        "rn": np.rint, "ra": _nearest_away, "rz": np.floor, "rp": np.ceil,
    }  # fmt: skip
    whole = roundings[mode](whole)
    # Steps of the format: a binade more is 2^(digits - 1) codes more, so that a carry goes where it belongs.
    code = ((step + bias + digits - 2).astype(np.int64) << (digits - 1)) + whole.astype(np.int64)
    most = infinity(form) - (mode == "rz")
    code = np.where(np.isinf(x), infinity(form), np.minimum(code, most))
    code = np.where(np.isnan(x), (1 << (bits - 1)) - 1, code | np.signbit(x).astype(np.int64) << (bits - 1))
    return code.astype(np.uint64)


def _nearest_away(x: NDArray) -> NDArray:
    below = np.floor(x)
    return np.asarray(below + (x - below >= 0.5))


def _to_odd(x: NDArray, rest: NDArray) -> NDArray:
    """Round the sum x + `rest` to odd: another rounding then gives what one rounding of the exact sum gives."""
    with np.errstate(invalid="ignore"):
        lost = np.isfinite(x) & (rest != 0)
        bits = x.view(np.uint64) - (lost & ((rest < 0) != np.signbit(x)))
    return np.asarray(np.where(lost, bits | np.uint64(1), bits)).view(np.float64)


def _add(a: NDArray, b: NDArray) -> NDArray:
    total = a + b
    part = total - a
    return _to_odd(total, (a - (total - part)) + (b - part))


def _arithmetic(term: Term, *args: NDArray) -> NDArray:
    form, mode = term.param
    a, *others = (decode(arg, form) for arg in args)
    # Products of two numbers of up to 24 digits are exact in float64.
    if form == TWICE and (term.op, mode) not in (
        ("fadd", "rn"),
        ("fmul", "rn"),
        ("fdiv", "rn"),
        ("sqrt", "rn"),
        ("integral", "rn"),
        ("integral", "rz"),
    ):
        raise TypeError(f"proof: {term.op} of DOUBLEs is not computed")
    if term.op == "integral":
        found = np.rint(a) if mode == "rn" else np.trunc(a)
    elif term.op == "fmul":
        found = a * others[0]
    elif term.op == "sqrt":
        found = np.sqrt(a)
    elif term.op == "fdiv":
        found = a / others[0]
    elif form == TWICE:
        found = a + others[0]
    else:
        found = _add(a, others[0]) if term.op == "fadd" else _add(a * others[0], others[1])
    return encode(np.asarray(found), form, mode)


def _from_int(term: Term, a: NDArray) -> NDArray:
    signed, form, mode = term.param
    width = term.args[0].width
    negative = _signed(a, width) < 0 if signed else np.zeros(a.shape, bool)
    size = np.where(negative, np.uint64(0) - np.asarray(_signed(a, width)).astype(np.uint64), a)
    # The top 53 bits, and one that says whether anything lies below them.
    low = size & np.uint64(2047)
    far = np.ldexp((size >> np.uint64(11)).astype(np.float64), 11)
    if form == TWICE:
        near = size.astype(np.float64)
        if mode != "rn":
            # From the nearest double to the one on the other side of the number.
            known = np.minimum(near, 2.0**63).astype(np.uint64) + np.maximum(near - 2.0**63, 0.0).astype(np.uint64)
            over = (near == 2.0**64) | (known > size)
            passed = over if mode == "rz" else ~over & (known < size)
            if mode == "ra":
                passed &= 2 * (size - known) == np.spacing(near).astype(np.uint64)
            near = np.where(passed, np.nextafter(near, 0.0 if mode == "rz" else np.inf), near)
        return encode(np.where(negative, -near, near), form, mode)
    wide = np.where(size >> np.uint64(53) == 0, size.astype(np.float64), _to_odd(far, (low != 0).astype(np.float64)))
    return encode(np.where(negative, -wide, wide), form, mode)


def _to_int(term: Term, a: NDArray) -> NDArray:
    form, signed, mode = term.param
    x = decode(a, form)
    nan = np.isnan(x)
    x = np.where(nan, 0.0, np.rint(x) if mode == "rn" else np.trunc(x))
    lowest, end = (-(2.0 ** (term.width - 1)), 2.0 ** (term.width - 1)) if signed else (0.0, 2.0**term.width)
    found = np.where((x < end) & (x >= lowest), x, 0.0)
    code = found.astype(np.int64).astype(np.uint64) if signed else found.astype(np.uint64)
    code = np.where(x >= end, np.uint64(int(end) - 1), np.where(x < lowest, np.uint64(int(lowest) % 2**64), code))
    return np.where(nan & (term.width == 64), np.uint64(1 << 63), code)


#: What gives no more bits than its arguments have, of at most 64.
_WITHIN = ("and", "or", "xor", "ite", "lshr")
_OPERATIONS: dict[str, Callable[..., NDArray]] = {
    **{op: (lambda t, *args, compute=compute: compute(*args)) for op, compute in INTEGERS.items()},
    "udiv": _udiv,
    "eq": lambda t, a, b: a == b,
    "ult": lambda t, a, b: a < b,
    "slt": lambda t, a, b: _signed(a, t.args[0].width) < _signed(b, t.args[0].width),
    "ite": _ite,
    "sext": lambda t, a: _signed(a, t.args[0].width),
    "part": lambda t, a: a >> (np.uint64(t.param) if a.dtype != object else t.param),
    "join": _join,
    **dict.fromkeys(("shl", "lshr", "ashr"), _shift),
    "lookup": _look_up,
    "search": _search,
    **dict.fromkeys(("fma", "fadd", "fmul", "fdiv", "sqrt", "integral"), _arithmetic),
    "convert": lambda t, a: encode(decode(a, t.param[0]), t.param[1], t.param[2]),
    "from_int": _from_int,
    "to_int": _to_int,
}
