# SPDX-License-Identifier: Apache-2.0
"""Asks an SMT solver, bitwuzla, for an input that makes a condition true."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from gpucast.parity.proof.terms import Format, Term, in_order, variables

SOLVER = "bitwuzla"
_MODES = {"rn": "RNE", "ra": "RNA", "rz": "RTZ", "rp": "RTP"}
_NAMES = {
    "and": "bvand", "or": "bvor", "xor": "bvxor", "not": "bvnot", "add": "bvadd", "sub": "bvsub", "mul": "bvmul",
    "udiv": "bvudiv", "shl": "bvshl", "lshr": "bvlshr", "ashr": "bvashr",
}  # fmt: skip
_CONDITIONS = {"eq": "=", "ult": "bvult", "slt": "bvslt"}
#: Operations whose result is a floating-point value. Those with a name here round once.
_FLOATS = {
    "fma": "fp.fma", "fadd": "fp.add", "fmul": "fp.mul", "integral": "fp.roundToIntegral",
    "convert": "", "from_int": "",
}  # fmt: skip


def version() -> str:
    """The solver's version; "" where it is not installed."""
    found = list(metadata.distributions(name=SOLVER))
    return found[0].version if found else ""


def ask(condition: Term, seconds: float) -> tuple[str, dict[str, int]]:
    """Whether some input makes the one-bit `condition` true.

    Returns "unsat" (no input does), "sat" with such an input by the names of the variables, or "unknown".
    ModuleNotFoundError if the solver is not installed.
    """
    import bitwuzla

    options = bitwuzla.Options()
    options.set(bitwuzla.Option.PRODUCE_MODELS, True)
    options.set(bitwuzla.Option.TIME_LIMIT_PER, int(1000 * seconds))
    parser = bitwuzla.Parser(bitwuzla.TermManager(), options)
    parser.parse("(set-logic QF_BVFP)\n" + smt(condition), True, False)
    solver = parser.bitwuzla()
    state = str(solver.check_sat()).rpartition(".")[2].lower()
    if state != "sat":
        return state, {}
    names = [term.param for term in variables(condition)]
    return state, {name: int(solver.get_value(parser.parse_term(name)).value(10)) for name in names}


def smt(condition: Term) -> str:
    """The condition as SMT-LIB: declarations, definitions and one assertion.

    SMT-LIB has no function from a floating-point value to its bits. An unknown stands for the bits, with an equation
    for its value. A NaN is then any NaN, so a proof holds for every payload.
    """
    names: dict[Term, str] = {}
    lines = []
    for number, term in enumerate(in_order(condition)):
        sort = f"(_ BitVec {term.width})"
        names[term] = name = term.param if term.op == "var" else f"t{number}"
        args = [names[arg] for arg in term.args]
        if term.op == "var":
            lines.append(f"(declare-fun {name} () {sort})")
        elif term.op in _FLOATS:
            form, value = _float(term, args)
            lines.append(f"(declare-fun {name} () {sort})")
            lines.append(f"(assert (= ({_to(form)} {name}) {value}))")
        else:
            lines.append(f"(define-fun {name} () {sort} {_expression(term, args)})")
    return "\n".join([*lines, f"(assert (= {names[condition]} #b1))", ""])


def _expression(term: Term, args: list[str]) -> str:
    op, width = term.op, term.width
    if op == "const":
        return f"(_ bv{term.param} {width})"
    if op in _NAMES:
        return f"({_NAMES[op]} {' '.join(args)})"
    if op in _CONDITIONS:
        return f"(ite ({_CONDITIONS[op]} {' '.join(args)}) #b1 #b0)"
    if op == "ite":
        return f"(ite (= {args[0]} #b1) {args[1]} {args[2]})"
    if op == "part":
        return f"((_ extract {term.param + width - 1} {term.param}) {args[0]})"
    if op == "join":
        return f"(concat {' '.join(reversed(args))})"
    if op == "sext":
        return f"((_ sign_extend {width - term.args[0].width}) {args[0]})"
    if op == "search":
        bounds, values = term.param
        return _search(args[0], term.args[0].width, bounds, values, width)
    if op == "to_int":
        return _to_int(term, args[0])
    raise TypeError(f"proof: {op} has no meaning for solvers")


def _search(key: str, bits: int, bounds: Sequence[int], values: Sequence[int], width: int) -> str:
    if not bounds:
        return f"(_ bv{values[0]} {width})"
    middle = len(bounds) // 2
    low = _search(key, bits, bounds[:middle], values[: middle + 1], width)
    high = _search(key, bits, bounds[middle + 1 :], values[middle + 1 :], width)
    return f"(ite (bvult {key} (_ bv{bounds[middle]} {bits})) {low} {high})"


def _to_int(term: Term, bits: str) -> str:
    form, signed, mode = term.param
    width = term.width
    number, nan = f"({_to(form)} {bits})", 1 << 63 if term.width == 64 else 0
    lowest, end = (-(1 << (width - 1)), 1 << (width - 1)) if signed else (0, 1 << width)
    whole = f"(fp.roundToIntegral {_MODES[mode]} {number})"
    # Powers of two, or zero, as codes.
    field, negative = (1 << (form[0] - 1)) - 1 + end.bit_length() - 1, 1 << (sum(form) - 1)
    limit = f"({_to(form)} (_ bv{field << (form[1] - 1)} {sum(form)}))"
    least = f"({_to(form)} (_ bv{negative | field << (form[1] - 1) if signed else 0} {sum(form)}))"
    to = "to_sbv" if signed else "to_ubv"
    return (
        f"(ite (fp.isNaN {number}) (_ bv{nan} {width}) (ite (fp.geq {whole} {limit}) (_ bv{end - 1} {width}) "
        f"(ite (fp.lt {whole} {least}) (_ bv{lowest % (1 << width)} {width}) ((_ fp.{to} {width}) RTZ {whole}))))"
    )


def _float(term: Term, args: list[str]) -> tuple[Format, str]:
    """The format and the value of an operation whose result is a floating-point value."""
    if term.op == "from_int":
        signed, form, mode = term.param
        return form, f"({_to(form, signed)} {_MODES[mode]} {args[0]})"
    source, *to, mode = term.param
    numbers = " ".join(f"({_to(source)} {arg})" for arg in args)
    form = to[0] if to else source
    return form, f"({_to(form) if to else _FLOATS[term.op]} {_MODES[mode]} {numbers})"


def _to(form: Format, signed: bool = True) -> str:
    """SMT-LIB's function from bits, a number or an integer to a format."""
    return f"(_ to_fp{'' if signed else '_unsigned'} {form[0]} {form[1]})"
