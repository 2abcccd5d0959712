# SPDX-License-Identifier: Apache-2.0
"""Asks SMT solvers for an input that makes a condition true. All solvers get the same SMT-LIB text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata

from gpucast.parity.proof.terms import Term, in_order, variables

SOLVERS = ("z3", "bitwuzla")
_MODES = {"rn": "RNE", "rz": "RTZ", "rp": "RTP"}
_NAMES = {
    "and": "bvand", "or": "bvor", "xor": "bvxor", "not": "bvnot", "add": "bvadd", "sub": "bvsub", "mul": "bvmul",
    "udiv": "bvudiv", "shl": "bvshl", "lshr": "bvlshr", "ashr": "bvashr",
}  # fmt: skip
_CONDITIONS = {"eq": "=", "ult": "bvult", "slt": "bvslt"}


def versions() -> dict[str, str]:
    """The versions of the installed solvers."""
    packages = zip(SOLVERS, ("z3-solver", "bitwuzla"), strict=True)
    installed = {name: list(metadata.distributions(name=package)) for name, package in packages}
    return {name: found[0].version for name, found in installed.items() if found}


def ask(solver: str, condition: Term, seconds: float) -> tuple[str, dict[str, int]]:
    """Whether some input makes the one-bit `condition` true.

    Returns "unsat" (no input does), "sat" with such an input by the names of the variables, or "unknown".
    ModuleNotFoundError if the solver is not installed.
    """
    names = {term.param: term.width for term in variables(condition)}
    return (_z3 if solver == "z3" else _bitwuzla)(smt(condition), names, seconds)


def _z3(text: str, names: dict[str, int], seconds: float) -> tuple[str, dict[str, int]]:
    import z3

    # Many times as fast as the default, which is made for conditions that come one after the other.
    solver = z3.Then("simplify", "fpa2bv", "simplify", "propagate-values", "bit-blast", "sat").solver()
    solver.set("timeout", int(1000 * seconds))
    solver.from_string(text)
    state = str(solver.check())
    if state != "sat":
        return state, {}
    model = solver.model()
    values = {name: model.eval(z3.BitVec(name, width), model_completion=True) for name, width in names.items()}
    return state, {name: value.as_long() for name, value in values.items()}


def _bitwuzla(text: str, names: dict[str, int], seconds: float) -> tuple[str, dict[str, int]]:
    import bitwuzla

    options = bitwuzla.Options()
    options.set(bitwuzla.Option.PRODUCE_MODELS, True)
    options.set(bitwuzla.Option.TIME_LIMIT_PER, int(1000 * seconds))
    parser = bitwuzla.Parser(bitwuzla.TermManager(), options)
    parser.parse("(set-logic QF_BVFP)\n" + text, True, False)
    solver = parser.bitwuzla()
    state = str(solver.check_sat()).rpartition(".")[2].lower()
    if state != "sat":
        return state, {}
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
            exponent_bits, digits = term.param[1 if term.op in ("convert", "from_int") else 0]
            lines.append(f"(declare-fun {name} () {sort})")
            lines.append(f"(assert (= ((_ to_fp {exponent_bits} {digits}) {name}) {_FLOATS[term.op](term, args)}))")
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
    width, kind = term.width, " ".join(map(str, form))
    number, nan = f"((_ to_fp {kind}) {bits})", 1 << 63 if term.width == 64 else 0
    lowest, end = (-(1 << (width - 1)), 1 << (width - 1)) if signed else (0, 1 << width)
    whole = f"(fp.roundToIntegral {_MODES[mode]} {number})"
    # Powers of two, or zero, as codes.
    field, negative = (1 << (form[0] - 1)) - 1 + end.bit_length() - 1, 1 << (sum(form) - 1)
    limit = f"((_ to_fp {kind}) (_ bv{field << (form[1] - 1)} {sum(form)}))"
    least = f"((_ to_fp {kind}) (_ bv{negative | field << (form[1] - 1) if signed else 0} {sum(form)}))"
    to = "to_sbv" if signed else "to_ubv"
    return (
        f"(ite (fp.isNaN {number}) (_ bv{nan} {width}) (ite (fp.geq {whole} {limit}) (_ bv{end - 1} {width}) "
        f"(ite (fp.lt {whole} {least}) (_ bv{lowest % (1 << width)} {width}) ((_ fp.{to} {width}) RTZ {whole}))))"
    )


def _number(term: Term, bits: str) -> str:
    return f"((_ to_fp {' '.join(map(str, term.param[0]))}) {bits})"


def _rounded(name: str) -> Callable[[Term, list[str]], str]:
    def text(term: Term, args: list[str]) -> str:
        return f"({name} {_MODES[term.param[1]]} {' '.join(_number(term, arg) for arg in args)})"

    return text


def _from_int(term: Term, args: list[str]) -> str:
    signed, form, mode = term.param
    return f"((_ {'to_fp' if signed else 'to_fp_unsigned'} {form[0]} {form[1]}) {_MODES[mode]} {args[0]})"


def _convert(term: Term, args: list[str]) -> str:
    form = term.param[1]
    return f"((_ to_fp {form[0]} {form[1]}) {_MODES[term.param[2]]} {_number(term, args[0])})"


_FLOATS: dict[str, Callable[[Term, list[str]], str]] = {
    "fma": _rounded("fp.fma"),
    "fadd": _rounded("fp.add"),
    "fmul": _rounded("fp.mul"),
    "integral": _rounded("fp.roundToIntegral"),
    "convert": _convert,
    "from_int": _from_int,
}
