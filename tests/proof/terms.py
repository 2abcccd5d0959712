# SPDX-License-Identifier: Apache-2.0
"""Terms over bit-vectors: the content of a register when the input is unknown.

Equal terms are one object, and constants are computed at once. A word that is joined from fields falls apart into them
again, so an element of a tile depends on its own input alone where the kernel allows it. `evaluation` computes a term
for arrays of inputs; `smt` writes it as SMT-LIB. Floating-point values are bit-vectors in their IEEE 754 encoding.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

#: Runs of equal bits up to which `&` and `|` with a constant are taken apart.
_RUNS = 12


class Term:
    """A term. `args` are its operands; those of a "join" are its parts, lowest bits first. `param` is any other datum
    of the operation: the value of a constant, the name of a variable, the lowest bit of a "part", the format and the
    rounding of arithmetic.
    """

    __slots__ = ("args", "constant", "op", "param", "splits", "width")

    def __init__(self, op: str, width: int, args: tuple[Term, ...], param: Any) -> None:
        self.op, self.width, self.args, self.param, self.constant = op, width, args, param, op == "const"
        #: Whether a part of it is the same operation on parts of its operands, some of which are simpler for that.
        self.splits: bool = op in ("const", "and", "or", "not", "ite") or (
            op == "xor" and any(arg.splits for arg in args)
        )

    def __int__(self) -> int:
        if self.op != "const":
            raise TypeError(f"proof: {self.op} of {self.width} bits is no constant")
        return int(self.param)


_TERMS: dict[tuple[Any, ...], Term] = {}


def forget() -> None:
    """Release all terms. A term that is still in use must not be combined with a new one."""
    _TERMS.clear()


def make(op: str, width: int, args: tuple[Term, ...] = (), param: Any = None) -> Term:
    key = (op, width, param, *map(id, args))
    found = _TERMS.get(key)
    if found is None:
        found = _TERMS[key] = Term(op, width, args, param)
    return found


def const(value: int, width: int) -> Term:
    # As `make` does it: most terms that are asked for are constants.
    value &= (1 << width) - 1
    key = ("const", width, value)
    found = _TERMS.get(key)
    if found is None:
        found = _TERMS[key] = Term("const", width, (), value)
    return found


def var(name: str, width: int) -> Term:
    return make("var", width, (), name)


def is_ones(term: Term) -> bool:
    return term.op == "const" and term.param == (1 << term.width) - 1


def is_zero(term: Term) -> bool:
    return term.op == "const" and term.param == 0


# ---- fields ----


def join(parts: Iterable[Term]) -> Term:
    """Put terms side by side, lowest bits first."""
    flat: list[Term] = []
    for part in parts:
        for piece in part.args if part.op == "join" else (part,):
            last = flat[-1] if flat else None
            if last is not None and last.constant and piece.constant:
                flat[-1] = const(last.param | piece.param << last.width, last.width + piece.width)
            elif last is not None and (merged := _adjacent(last, piece)) is not None:
                flat[-1] = merged
            else:
                flat.append(piece)
    return flat[0] if len(flat) == 1 else make("join", sum(piece.width for piece in flat), tuple(flat))


def _adjacent(low: Term, high: Term) -> Term | None:
    """Two neighbouring parts of one term as one part."""
    if low.op == "part" == high.op and low.args == high.args and low.param + low.width == high.param:
        return part(low.args[0], low.param, low.width + high.width)
    return None


def part(term: Term, low: int, width: int) -> Term:
    """`width` bits, from bit `low` up."""
    if width == term.width:
        return term
    op, args = term.op, term.args
    if op == "const":
        return const(term.param >> low, width)
    if op == "part":
        return part(args[0], term.param + low, width)
    if op == "join":
        found = []
        for piece in args:
            begin, end = max(low, 0), min(low + width, piece.width)
            if begin < end:
                found.append(part(piece, begin, end - begin))
            low -= piece.width
        return join(found)
    if term.splits and op != "ite":
        return bitwise(op, *(part(arg, low, width) for arg in args))
    if op == "ite":
        return ite(args[0], part(args[1], low, width), part(args[2], low, width))
    if op in ("add", "sub", "mul") and low == 0:
        return BUILDERS[op](term, *(part(arg, 0, width) for arg in args))
    if op == "sext" and low + width <= args[0].width:
        return part(args[0], low, width)
    if op in ("search", "lookup"):
        values = {value >> low & ((1 << width) - 1) for value in _values(op, term.width, term.param)}
        if len(values) == 1:
            return const(values.pop(), width)
    return make("part", width, (term,), low)


@lru_cache(maxsize=64)
def _values(op: str, width: int, param: Any) -> set[int]:
    """The possible values of a "search" or a "lookup"."""
    if op == "search":
        return set(param[1])
    _, memory = param
    return {int.from_bytes(memory[at : at + width // 8], "little") for at in range(0, len(memory), width // 8)}


def zext(term: Term, width: int) -> Term:
    return term if width == term.width else join((term, const(0, width - term.width)))


def sext(term: Term, width: int) -> Term:
    if width == term.width:
        return term
    if term.constant:
        return const(term.param - (term.param >> (term.width - 1) << term.width), width)
    if term.op == "join" and is_zero(term.args[-1]):
        return zext(term, width)
    return make("sext", width, (term,))


def resize(term: Term, width: int, signed: bool = False) -> Term:
    return part(term, 0, width) if width <= term.width else sext(term, width) if signed else zext(term, width)


def _cuts(term: Term, runs: bool) -> set[int]:
    """The bit positions at which the fields of a term end."""
    if term.op == "join":
        at, found = 0, set()
        for piece in term.args:
            found |= {at + cut for cut in _cuts(piece, runs)}
            at += piece.width
        return found
    if term.op == "const" and runs:
        changes = term.param ^ term.param >> 1
        found = {bit + 1 for bit in range(term.width - 1) if changes >> bit & 1}
        if len(found) < _RUNS:
            return found | {term.width}
    return {term.width}


def bitwise(op: str, *args: Term) -> Term:
    """ "and", "or", "xor" or "not", field by field."""
    cuts = sorted(set().union(*(_cuts(arg, op in ("and", "or")) for arg in args)))
    if len(cuts) == 1:
        return _bitwise(op, args)
    found, low = [], 0
    for cut in cuts:
        found.append(_bitwise(op, tuple(part(arg, low, cut - low) for arg in args)))
        low = cut
    return join(found)


def _bitwise(op: str, args: tuple[Term, ...]) -> Term:
    width, a, b = args[0].width, args[0], args[-1]
    if all(arg.constant for arg in args):
        return const(INTEGERS[op](*(arg.param for arg in args)), width)
    if op == "not":
        return a.args[0] if a.op == "not" else make("not", width, args)
    if a.constant or (id(a) > id(b) and not b.constant):
        a, b = b, a
    if a is b:
        return const(0, width) if op == "xor" else a
    if is_zero(b):
        return b if op == "and" else a
    if is_ones(b):
        return a if op == "and" else b if op == "or" else bitwise("not", a)
    if (a.op == "not" and a.args[0] is b) or (b.op == "not" and b.args[0] is a):
        return const(0 if op == "and" else -1, width)
    return make(op, width, (a, b))


def invert(a: Term) -> Term:
    return bitwise("not", a)


def conj(*terms: Term) -> Term:
    """The conjunction of some conditions."""
    found = const(1, 1)
    for term in terms:
        found = bitwise("and", found, term)
    return found


# ---- arithmetic ----


def _two(op: str, a: Term, b: Term) -> Term:
    if a.constant and b.constant:
        return const(INTEGERS[op](a.param, b.param), a.width)
    return make(op, a.width, (a, b))


def add(a: Term, b: Term) -> Term:
    if is_zero(a) or is_zero(b):
        return b if is_zero(a) else a
    if a is b:
        # As NVRTC 12 writes a shift: bits that only move stay apart from their neighbours.
        return shift("shl", a, const(1, a.width))
    if a.op == "join" or b.op == "join":
        cuts, low = sorted(_cuts(a, True) | _cuts(b, True)), 0
        for cut in cuts:
            if not (is_zero(part(a, low, cut - low)) or is_zero(part(b, low, cut - low))):
                break
            low = cut
        else:
            return bitwise("or", a, b)  # No two fields meet, so nothing is carried.
    a, b = (b, a) if a.constant else (a, b)
    if b.constant and a.op == "add" and a.args[1].constant:
        return add(a.args[0], add(a.args[1], b))
    return _two("add", a, b)


def sub(a: Term, b: Term) -> Term:
    return add(a, const(-b.param, a.width)) if b.constant else _two("sub", a, b)


def mul(a: Term, b: Term) -> Term:
    for one, other in ((a, b), (b, a)):
        if one.constant and one.param & (one.param - 1) == 0:
            return shift("shl", other, const(one.param.bit_length() - 1, a.width)) if one.param else one
    return _two("mul", *((b, a) if a.constant or (id(b) < id(a) and not b.constant) else (a, b)))


def negate(a: Term) -> Term:
    return sub(const(0, a.width), a)


def udiv(a: Term, b: Term) -> Term:
    if a.constant and b.constant and b.param:
        return const(a.param // b.param, a.width)
    return make("udiv", a.width, (a, b))


def shift(op: str, a: Term, by: Term) -> Term:
    """ "shl", "lshr" or "ashr". A shift by the width or more shifts out all bits."""
    width = a.width
    if by.constant:
        count = min(by.param, width)
        if op == "shl":
            return (
                join((const(0, count), part(a, 0, width - count)))
                if 0 < count < width
                else (a if count == 0 else const(0, width))
            )
        count = min(count, width - 1) if op == "ashr" else count
        if count == width:
            return const(0, width)
        return resize(part(a, count, width - count), width, op == "ashr")
    if by.width > width:
        by = ite(ult(by, const(width, by.width)), part(by, 0, width), const(width, width))
    return make(op, width, (a, zext(by, width)))


def clz(a: Term, width: int) -> Term:
    """The number of zeros above the highest set bit, in `width` bits."""
    found = const(a.width, width)
    for bit in range(a.width):
        found = ite(part(a, bit, 1), const(a.width - 1 - bit, width), found)
    return found


# ---- conditions: terms of one bit ----


def eq(a: Term, b: Term) -> Term:
    if a is b:
        return const(1, 1)
    if a.constant and b.constant:
        return const(0, 1)
    if a.width == 1:
        return invert(bitwise("xor", a, b))
    if a.op == "join" or b.op == "join":
        cuts, low, rest = sorted(_cuts(a, False) | _cuts(b, False)), 0, []
        for cut in cuts:
            one, other = part(a, low, cut - low), part(b, low, cut - low)
            low = cut
            if one.constant and other.constant and one is not other:
                return const(0, 1)
            if one is not other:
                rest.append((one, other))
        if len(rest) < len(cuts):
            return eq(join(one for one, _ in rest), join(other for _, other in rest))
    return make("eq", 1, (a, b))


def ult(a: Term, b: Term) -> Term:
    if a.constant and b.constant:
        return const(int(a.param < b.param), 1)
    return const(0, 1) if a is b or is_zero(b) else make("ult", 1, (a, b))


def slt(a: Term, b: Term) -> Term:
    if is_zero(b):
        return part(a, a.width - 1, 1)
    if a.constant and b.constant:
        flip = 1 << (a.width - 1)
        return const(int(a.param ^ flip < b.param ^ flip), 1)
    return const(0, 1) if a is b else make("slt", 1, (a, b))


def ite(condition: Term, a: Term, b: Term) -> Term:
    if condition.constant:
        return a if condition.param else b
    if a is b:
        return a
    if condition.op == "not":
        return ite(condition.args[0], b, a)
    if a.width == 1 and (a.constant or b.constant):
        if a.constant:
            return bitwise("or", condition, b) if a.param else bitwise("and", invert(condition), b)
        return bitwise("or", invert(condition), a) if b.param else bitwise("and", condition, a)
    return make("ite", a.width, (condition, a, b))


def search(key: Term, bounds: Sequence[int], values: Sequence[int], width: int) -> Term:
    """The value at the index that counts the bounds (ascending) at or below the unsigned key."""
    within = bisect_left(bounds, 1 << key.width)
    steps = [at for at in range(within) if values[at] != values[at + 1]]
    if key.constant or not steps:
        return const(values[bisect_right(bounds[:within], key.param) if key.constant else 0], width)
    return make(
        "search",
        width,
        (key,),
        (tuple(bounds[at] for at in steps), (values[steps[0]], *(values[at + 1] for at in steps))),
    )


# ---- floating point: a format is its (exponent bits, significand bits with the hidden one) ----

Format = tuple[int, int]
HALF, BRAIN, SINGLE, TWICE = (5, 11), (8, 8), (8, 24), (11, 53)


def magnitude(a: Term) -> Term:
    return part(a, 0, a.width - 1)


def infinity(form: Format) -> int:
    return ((1 << form[0]) - 1) << (form[1] - 1)


def is_nan(a: Term, form: Format) -> Term:
    return ult(const(infinity(form), a.width - 1), magnitude(a))


def less(a: Term, b: Term) -> Term:
    """Whether a < b as numbers; -0 is not below +0."""
    keys = [
        ite(part(x, x.width - 1, 1), negate(zext(magnitude(x), x.width)), zext(magnitude(x), x.width)) for x in (a, b)
    ]
    return slt(*keys)


def arithmetic(op: str, width: int, args: tuple[Term, ...], *param: Any) -> Term:
    """An operation of floating-point arithmetic; `tests.proof.evaluation` and `smt` say what each one means:

    - "fma", "fadd", "fmul", "fdiv", "sqrt" and "integral" (form, mode): rounded once; a NaN result is any NaN.
      Solvers do not know "fdiv" and "sqrt".
    - "convert" (from, to, mode): from one format to another.
    - "from_int" (signed, to, mode), and "to_int" (form, signed, mode): the latter clamps; NaN gives 0, or the lowest
      integer if the result has 64 bits and a sign, the top bit if it has none.
    - "lookup" (base, bytes): `width` bits of a constant memory, at the address which is the operand.
    """
    return make(op, width, args, param)


#: Of integers and of arrays of them; only the lowest bits of the result count.
INTEGERS: dict[str, Callable[..., Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}


# ---- whole terms ----


def in_order(*roots: Term) -> list[Term]:
    """All terms that the given ones depend on; operands come first."""
    found: dict[Term, None] = {}
    stack = [(root, False) for root in roots]
    while stack:
        term, ready = stack.pop()
        if ready:
            found[term] = None
        elif term not in found:
            stack.append((term, True))
            stack.extend((arg, False) for arg in term.args if arg not in found)
    return list(found)


def variables(*roots: Term) -> list[Term]:
    return [term for term in in_order(*roots) if term.op == "var"]


def substitute(root: Term, new: Mapping[Term, Term], order: Sequence[Term] | None = None) -> Term:
    """The term with other terms in place of some. `order`: what `in_order` gives, where it is known."""
    done: dict[Term, Term] = dict(new)
    for term in in_order(root) if order is None else order:
        if term not in done:
            done[term] = rebuild(term, tuple(done[arg] for arg in term.args))
    return done[root]


def rebuild(term: Term, args: tuple[Term, ...]) -> Term:
    """The same operation with other operands."""
    if args == term.args:
        return term
    build = BUILDERS.get(term.op)
    return make(term.op, term.width, args, term.param) if build is None else build(term, *args)


BUILDERS: dict[str, Callable[..., Term]] = {
    "add": lambda _, a, b: add(a, b),
    "sub": lambda _, a, b: sub(a, b),
    "mul": lambda _, a, b: mul(a, b),
    "udiv": lambda _, a, b: udiv(a, b),
    "eq": lambda _, a, b: eq(a, b),
    "ult": lambda _, a, b: ult(a, b),
    "slt": lambda _, a, b: slt(a, b),
    "ite": lambda _, condition, a, b: ite(condition, a, b),
    **dict.fromkeys(("and", "or", "xor", "not"), lambda term, *args: bitwise(term.op, *args)),
    **dict.fromkeys(("shl", "lshr", "ashr"), lambda term, *args: shift(term.op, *args)),
    "part": lambda term, a: part(a, term.param, term.width),
    "join": lambda term, *args: join(args),
    "sext": lambda term, a: sext(a, term.width),
    "search": lambda term, key: search(key, term.param[0], term.param[1], term.width),
}
