# SPDX-License-Identifier: Apache-2.0
"""The meaning of PTX instructions, as terms. Source: the PTX manual, chapter 9 of version 8.8; of 9.2 for
conversions between small floats and pairs.

The table has each instruction by its full name, with modifiers; an instruction that is missing is an error. Operations
on float keep subnormals: `.ftz` would be another name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gpucast.core.dtypes import dtype
from gpucast.core.rule import RoundMode
from tests.proof import terms as t
from tests.proof.nearest import nearest, powers
from tests.proof.terms import BRAIN, HALF, SINGLE, TWICE, Format, Term, const, part

#: The widths of the operands, and the result of terms of these widths.
Operation = tuple[tuple[int, ...], Callable[..., Term]]

_COMPARE: dict[str, Callable[..., Term]] = {
    "eq": lambda a, b, less, equal: equal(a, b),
    "ne": lambda a, b, less, equal: t.invert(equal(a, b)),
    "lt": lambda a, b, less, equal: less(a, b),
    "le": lambda a, b, less, equal: t.invert(less(b, a)),
    "gt": lambda a, b, less, equal: less(b, a),
    "ge": lambda a, b, less, equal: t.invert(less(a, b)),
}


def _choose(least: bool, less: Callable[[Term, Term], Term]) -> Callable[[Term, Term], Term]:
    return lambda a, b: t.ite(less(a, b), *((a, b) if least else (b, a)))


def _abs(a: Term) -> Term:
    return t.ite(part(a, a.width - 1, 1), t.negate(a), a)


def _wide(signed: bool) -> Callable[[Term, Term], Term]:
    return lambda a, b: t.mul(t.resize(a, 2 * a.width, signed), t.resize(b, 2 * a.width, signed))


def _bfi(a: Term, b: Term, at: Term, count: Term) -> Term:
    low, size = int(at), min(int(count), b.width - int(at))
    if size <= 0:
        return b
    return t.join(piece for piece in (
        *((part(b, 0, low),) if low else ()), part(a, 0, size),
        *((part(b, low + size, b.width - low - size),) if low + size < b.width else ())))  # fmt: skip


def _prmt(a: Term, b: Term, selector: Term) -> Term:
    both = t.join((a, b))
    bytes_, found = [part(both, 8 * place, 8) for place in range(8)], []
    for place in range(4):
        left = bytes_
        for bit in range(3):
            chosen = part(selector, 4 * place + bit, 1)
            left = [t.ite(chosen, high, low) for low, high in zip(left[::2], left[1::2], strict=True)]
        sign = part(selector, 4 * place + 3, 1)
        found.append(t.ite(sign, t.sext(part(left[0], 7, 1), 8), left[0]))
    return t.join(found)


def _brev(a: Term) -> Term:
    return t.join(part(a, a.width - 1 - place, 1) for place in range(a.width))


def _lop3(a: Term, b: Term, c: Term, table: Term) -> Term:
    found = const(0, a.width)
    for number in range(8):
        if int(table) >> number & 1:
            # Bit 2 of the number is that of `a`.
            chosen = (x if number >> place & 1 else t.invert(x) for place, x in ((2, a), (1, b), (0, c)))
            found = t.bitwise("or", found, functools.reduce(functools.partial(t.bitwise, "and"), chosen))
    return found


def _divide(a: Term, b: Term) -> Term:
    if t.is_zero(b):
        raise ZeroDivisionError("a division by zero")
    return t.udiv(a, b)


def _remainder(a: Term, b: Term) -> Term:
    return t.sub(a, t.mul(_divide(a, b), b))


def lanes(operation: Callable[..., Term]) -> Callable[..., Term]:
    """Apply an operation to both halves of its operands."""

    def both(*args: Term) -> Term:
        half = args[0].width // 2
        return t.join(operation(*(part(arg, low, half) for arg in args)) for low in (0, half))

    return both


# ---- floating point ----


def _any_nan(form: Format, like: Term) -> Term:
    """An unspecified NaN. A solver sees it as any NaN; in computed values it is the NaN of PTX."""
    one = const(((1 << (form[0] - 1)) - 1) << (form[1] - 1), like.width)
    return t.arithmetic("fmul", like.width, (like, one), form, "rn")


def choose(least: bool, form: Format, keep_nan: bool = False) -> Callable[[Term, Term], Term]:
    """min or max. -0 is below +0. If one operand is NaN the result is the other one, or NaN with `keep_nan`."""

    def order(a: Term) -> Term:
        # Ascending as unsigned integers.
        return t.bitwise("xor", a, t.join((t.sext(part(a, a.width - 1, 1), a.width - 1), const(1, 1))))

    def chosen(a: Term, b: Term) -> Term:
        below = t.ult(order(a), order(b))
        found = t.ite(below, *((a, b) if least else (b, a)))
        nan = [t.is_nan(x, form) for x in (a, b)]
        if a.constant and t.is_zero(nan[0]):
            a, b, nan = b, a, nan[::-1]
        if keep_nan:
            return t.ite(nan[0], _any_nan(form, a), t.ite(nan[1], _any_nan(form, b), found))
        return t.ite(nan[0], t.ite(nan[1], _any_nan(form, b), b), t.ite(nan[1], a, found))

    return chosen


def _compare(name: str, form: Format) -> Callable[[Term, Term], Term]:
    def equal(a: Term, b: Term) -> Term:
        zeros = t.eq(t.bitwise("or", t.magnitude(a), t.magnitude(b)), const(0, a.width - 1))
        return t.bitwise("or", t.eq(a, b), zeros)

    def compared(a: Term, b: Term) -> Term:
        nan = t.bitwise("or", t.is_nan(a, form), t.is_nan(b, form))
        if name in ("num", "nan"):
            return nan if name == "nan" else t.invert(nan)
        found = _COMPARE[name[:2]](a, b, t.less, equal)
        return t.bitwise("or", nan, found) if name[2:] else t.bitwise("and", t.invert(nan), found)

    return compared


def _negated(a: Term) -> Term:
    return t.join((t.magnitude(a), t.invert(part(a, a.width - 1, 1))))


def _arithmetic(op: str, width: int, *param: object) -> Callable[..., Term]:
    return lambda *args: t.arithmetic(op, width, args, *param)


def _to_small(name: str, source: str = "FLOAT") -> Callable[..., Term]:
    """Convert two floats, the second to the low code, or a pair of halves: nearest even, saturating, NaN all ones, 6
    bits in bytes."""
    small, own = dtype(name), dtype(source)

    def code(a: Term) -> Term:
        nan = t.is_nan(a, _FORMS[source])
        size = t.ite(
            nan, const(-1, small.bits - 1), nearest(t.magnitude(a), own, small, small.max_code, small.bits - 1)
        )
        signed = t.join((size, t.bitwise("and", part(a, own.bits - 1, 1), t.invert(nan))))
        return t.zext(signed, 8) if small.bits == 6 else signed

    return _of_two(code, own.bits)


#: The types that conversions to small floats take, as formats of terms.
_FORMS = {"FLOAT": SINGLE, "FLOAT16": HALF, "BFLOAT16": BRAIN}


def _of_two(code: Callable[[Term], Term], bits: int) -> Callable[..., Term]:
    """Both results of a conversion: of two operands, of which the second has the low one, or of a pair in one."""
    if bits == 16:
        return lambda a: t.join((code(part(a, 0, 16)), code(part(a, 16, 16))))
    return lambda a, b: t.join((code(b), code(a)))


def _funnel(a: Term, b: Term, by: Term) -> Term:
    """The upper word of `b` (high) and `a` (low) after a shift to the left by up to 31 bits."""
    return part(t.shift("shl", t.join((a, b)), t.bitwise("and", by, const(31, 32))), 32, 32)


def _to_power(mode: RoundMode, source: str = "FLOAT") -> Callable[..., Term]:
    """Convert the magnitudes of two floats, or of a pair, to FLOAT8E8M0; the second goes to the low code. Overflow
    saturates."""
    power, own = dtype("FLOAT8E8M0"), dtype(source)

    def code(a: Term) -> Term:
        steps = powers(own, power, mode)[1:-1]
        nan = t.is_nan(a, _FORMS[source])
        return t.ite(nan, const(-1, 8), t.search(t.magnitude(a), steps, range(len(steps) + 1), 8))

    return _of_two(code, own.bits)


def _from_small(name: str, half: str = "FLOAT16") -> Callable[[Term], Term]:
    """Convert two codes to float16 or bfloat16, exactly. NaN becomes 0x7fff; codes of 6 bits are in bytes."""
    small = dtype(name)
    numbers = np.array([small.value(code) for code in range(1 << small.bits)]).astype(dtype(half).numpy)
    memory = np.where(np.isnan(numbers), 0x7FFF, numbers.view(np.uint16)).astype("<u2").tobytes()
    apart = 4 if small.bits == 4 else 8

    def one(code: Term) -> Term:
        at = t.zext(t.join((const(0, 1), code)), 32)
        return t.arithmetic("lookup", 16, (at,), 0, memory)

    return lambda a: t.join((one(part(a, 0, small.bits)), one(part(a, apart, small.bits))))


def _table() -> dict[str, Operation]:
    found: dict[str, Operation] = {"not.pred": ((1,), t.invert), "mov.pred": ((1,), lambda a: a)}
    for op in ("and", "or", "xor"):
        for kind, width in (("pred", 1), ("b16", 16), ("b32", 32), ("b64", 64)):
            found[f"{op}.{kind}"] = (width, width), lambda a, b, op=op: t.bitwise(op, a, b)
    for w in (16, 32, 64):
        ww = (w, w)
        found[f"not.b{w}"] = (w,), t.invert
        found[f"selp.b{w}"] = (w, w, 1), lambda a, b, c: t.ite(c, a, b)
        found[f"shl.b{w}"] = (w, 32), lambda a, by: t.shift("shl", a, by)
        for compare in ("eq", "ne"):
            found[f"setp.{compare}.b{w}"] = ww, lambda a, b, how=_COMPARE[compare]: how(a, b, t.ult, t.eq)
        for k, signed in (("s", True), ("u", False)):
            less = t.slt if signed else t.ult
            kind = f"{k}{w}"
            found |= {
                f"add.{kind}": (ww, t.add),
                f"sub.{kind}": (ww, t.sub),
                f"mul.lo.{kind}": (ww, t.mul),
                f"mad.lo.{kind}": ((w, w, w), lambda a, b, c: t.add(t.mul(a, b), c)),
                f"min.{kind}": (ww, _choose(True, less)),
                f"max.{kind}": (ww, _choose(False, less)),
                f"neg.{kind}": ((w,), t.negate),
                f"abs.{kind}": ((w,), _abs),
                f"shr.{kind}": ((w, 32), lambda a, by, op="ashr" if signed else "lshr": t.shift(op, a, by)),
                f"selp.{kind}": found[f"selp.b{w}"],
            }
            if w < 64:
                found[f"mul.wide.{kind}"] = ww, _wide(signed)
            for compare, how in _COMPARE.items():
                found[f"setp.{compare}.{kind}"] = ww, lambda a, b, how=how, less=less: how(a, b, less, t.eq)
            for source in (8, 16, 32, 64):
                for to in (f"s{w}", f"u{w}"):
                    found[f"cvt.{to}.{k}{source}"] = (source,), lambda a, w=w, signed=signed: t.resize(a, w, signed)
        if w > 16:
            found[f"bfi.b{w}"] = (w, w, 32, 32), _bfi
            found[f"clz.b{w}"] = (w,), lambda a: t.clz(a, 32)
            found[f"div.u{w}"] = ww, _divide
            found[f"rem.u{w}"] = ww, _remainder
    found["prmt.b32"] = (32, 32, 32), _prmt
    found["brev.b32"] = (32,), _brev
    found["lop3.b32"] = (32, 32, 32, 32), _lop3
    found["shf.l.wrap.b32"] = (32, 32, 32), _funnel
    found["cvta.to.global.u64"] = (64,), lambda a: a
    for kind, less, least in (("s", t.slt, "min"), ("s", t.slt, "max"), ("u", t.ult, "min"), ("u", t.ult, "max")):
        found[f"{least}.{kind}16x2"] = (32, 32), lanes(_choose(least == "min", less))
    for name, form in (("f16", HALF), ("bf16", BRAIN), ("f32", SINGLE), ("f64", TWICE)):
        w = sum(form)
        for least in ("min", "max"):
            found[f"{least}.{name}"] = (w, w), choose(least == "min", form)
            found[f"{least}.NaN.{name}"] = (w, w), choose(least == "min", form, keep_nan=True)
        for mode in ("rn", "rz"):
            found[f"fma.{mode}.{name}"] = (w, w, w), _arithmetic("fma", w, form, mode)
            found[f"mul.{mode}.{name}"] = (w, w), _arithmetic("fmul", w, form, mode)
            found[f"add.{mode}.{name}"] = (w, w), _arithmetic("fadd", w, form, mode)
        found[f"abs.{name}"] = (w,), lambda a: t.zext(t.magnitude(a), a.width)
        found[f"neg.{name}"] = (w,), _negated
        if w == 16:
            for op in ("abs", "min", "max", "min.NaN", "max.NaN", "fma.rn", "mul.rn", "add.rn"):
                widths, operation = found[f"{op}.{name}"]
                found[f"{op}.{name}x2"] = tuple(32 for _ in widths), lanes(operation)
        else:
            found[f"selp.{name}"] = (w, w, 1), lambda a, b, c: t.ite(c, a, b)
            found[f"cvt.rni.{name}.{name}"] = (w,), _arithmetic("integral", w, form, "rn")
            found[f"cvt.rzi.{name}.{name}"] = (w,), _arithmetic("integral", w, form, "rz")
            for compare in (*_COMPARE, *(f"{one}u" for one in _COMPARE), "num", "nan"):
                found[f"setp.{compare}.{name}"] = (w, w), _compare(compare, form)
            for kind in ("s32", "u32", "s64", "u64"):
                size, signed = int(kind[1:]), kind[0] == "s"
                for mode in ("rn", "rz"):
                    found[f"cvt.{mode}.{name}.{kind}"] = (size,), _arithmetic("from_int", w, signed, form, mode)
                    if kind != "u64":  # The manual does not say what NaN gives there.
                        found[f"cvt.{mode}i.{kind}.{name}"] = (w,), _arithmetic("to_int", size, form, signed, mode)
    # Without a mode it is to nearest, and may become one with an addition that has none: these are not known here.
    found["mul.f64"] = found["mul.rn.f64"]
    found["div.rn.f64"] = (64, 64), _arithmetic("fdiv", 64, TWICE, "rn")

    def convert(source: Format, to: Format, mode: str) -> Callable[[Term], Term]:
        return _arithmetic("convert", sum(to), source, to, mode)

    found["cvt.f32.f16"] = (16,), convert(HALF, SINGLE, "rn")
    found["cvt.f64.f32"] = (32,), convert(SINGLE, TWICE, "rn")
    for mode in ("rn", "rz"):
        found[f"cvt.{mode}.f32.f64"] = (64,), convert(TWICE, SINGLE, mode)
        for name, form in (("f16", HALF), ("bf16", BRAIN)):
            one = convert(SINGLE, form, mode)
            found[f"cvt.{mode}.{name}x2.f32"] = (32, 32), lambda a, b, one=one: t.join((one(b), one(a)))
    halves = (("f16x2", "FLOAT16"), ("bf16x2", "BFLOAT16"))
    for name, small in (
        *(("e4m3", "FLOAT8E4M3FN"), ("e5m2", "FLOAT8E5M2"), ("e2m1", "FLOAT4E2M1")),
        *(("e2m3", "FLOAT6E2M3"), ("e3m2", "FLOAT6E3M2")),
    ):
        found[f"cvt.rn.satfinite.{name}x2.f32"] = (32, 32), _to_small(small)
        for pair, half in halves:
            found[f"cvt.rn.satfinite.{name}x2.{pair}"] = (32,), _to_small(small, half)
            found[f"cvt.rn.{pair}.{name}x2"] = (8 if name == "e2m1" else 16,), _from_small(small, half)
    powers_of: tuple[tuple[RoundMode, str], ...] = (("up", "rp"), ("down", "rz"))
    for of_power, rounding in powers_of:
        found[f"cvt.{rounding}.satfinite.ue8m0x2.f32"] = (32, 32), _to_power(of_power)
        found[f"cvt.{rounding}.satfinite.ue8m0x2.bf16x2"] = (32,), _to_power(of_power, "BFLOAT16")
    found["cvt.rn.bf16x2.ue8m0x2"] = (16,), _from_small("FLOAT8E8M0", "BFLOAT16")
    for op, count in (("add", 2), ("mul", 2), ("fma", 3)):
        found[f"{op}.rn.f32x2"] = (64,) * count, lanes(found[f"{op}.rn.f32"][1])
    return found


OPERATIONS = _table()


def _flush(a: Term) -> Term:
    """Zero of the same sign in place of a subnormal FLOAT."""
    return t.ite(t.ult(t.magnitude(a), const(1 << 23, 31)), t.join((const(0, 31), part(a, 31, 1))), a)


def _running() -> dict[str, Operation]:
    """Those that are executed on numbers, and that no solver knows. Without a mode `add`, `sub` and `mul` are rounded
    to nearest; ptxas may contract them. `rcp.approx` may be off by one ULP, on which no result may depend.
    """
    found: dict[str, Operation] = {}
    for name, form in (("f32", SINGLE), ("f64", TWICE)):
        w = sum(form)
        add, multiply, divide = (_arithmetic(op, w, form, "rn") for op in ("fadd", "fmul", "fdiv"))
        found[f"sub.rn.{name}"] = (w, w), lambda a, b, add=add: add(a, _negated(b))
        found |= {f"add.{name}": ((w, w), add), f"mul.{name}": ((w, w), multiply), f"div.rn.{name}": ((w, w), divide)}
        found[f"sub.{name}"] = found[f"sub.rn.{name}"]
        found[f"sqrt.rn.{name}"] = (w,), _arithmetic("sqrt", w, form, "rn")
    one = const(0x3F800000, 32)
    found["rcp.rn.f32"] = (32,), lambda a: found["div.rn.f32"][1](one, a)
    found["rcp.approx.ftz.f32"] = (32,), lambda a: _flush(found["div.rn.f32"][1](one, _flush(a)))
    found["sub.rn.f32x2"] = (64, 64), lanes(found["sub.rn.f32"][1])
    for kind in ("s8", "u8", "s16", "u16"):
        for name, form in (("f32", SINGLE), ("f64", TWICE)):
            found[f"cvt.rn.{name}.{kind}"] = (
                (int(kind[1:]),),
                _arithmetic("from_int", sum(form), kind[0] == "s", form, "rn"),
            )
    found["cvt.s8.s64"] = (64,), lambda a: t.sext(part(a, 0, 8), 16)
    for w in (32, 64):
        for kind, signed in (("u", False), ("s", True)):
            wide = _wide(signed)
            found[f"mul.hi.{kind}{w}"] = (w, w), lambda a, b, wide=wide: part(wide(a, b), a.width, a.width)
        found[f"div.s{w}"] = (w, w), _divide_signed
        found[f"rem.s{w}"] = (w, w), lambda a, b: t.sub(a, t.mul(_divide_signed(a, b), b))
    return found


def _divide_signed(a: Term, b: Term) -> Term:
    signs = t.bitwise("xor", part(a, a.width - 1, 1), part(b, b.width - 1, 1))
    found = _divide(_abs(a), _abs(b))
    return t.ite(signs, t.negate(found), found)


RUNNING = _running()
