# SPDX-License-Identifier: Apache-2.0
"""Proves from a kernel's PTX that its result is the specified one for every input."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpucast.core.rounding import STOCHASTIC
from tests.proof import terms as t
from tests.proof.evaluation import NDArray, evaluate
from tests.proof.launches import (
    AMAX,
    FINITE,
    WIDE,
    BatchSubject,
    Given,
    Launch,
    Part,
    Subject,
    cell,
    element,
    is_cell,
    run,
    run_many,
    seed,
)
from tests.proof.machine import Fault, Unknown
from tests.proof.ptx import Kernel
from tests.proof.solvers import SOLVER, ask
from tests.proof.specification import largest, not_finite, random_word, scaled, specification
from tests.proof.terms import Term

#: Inputs of together so many bits are all tried; wider ones are left to a solver.
EXHAUSTED = 16
#: The source code, or the random word, of an element.
_NUMBERED = re.compile(r"(x|word)(\d+)")


@dataclass(frozen=True)
class Counterexample:
    """Source codes, by index, for which the element `index` differs; any code does for other indices."""

    index: int
    codes: dict[int, int]
    got: int
    wanted: int
    launch: Launch


@dataclass
class Verdict:
    """A proof holds if `problem` is "". `seconds` is processor time by method ("exhaustion", or the solver)."""

    seconds: dict[str, float] = field(default_factory=dict)
    launches: int = 0
    problem: str = ""
    counterexample: Counterexample | None = None

    @property
    def proved(self) -> bool:
        return not self.problem


class Prover:
    """The proof of one kernel. It compares each term once: tiles, threads and launches mostly share it."""

    def __init__(
        self,
        source: Subject | BatchSubject,
        kernel: Kernel,
        limit: float = 300,
        verdict: Verdict | None = None,
    ) -> None:
        self.source, self.kernel, self.limit = source, kernel, limit
        #: A rule with several kernels passes it on from kernel to kernel.
        self.verdict = Verdict() if verdict is None else verdict
        self._done: set[tuple[Term, Term]] = set()
        self._table: dict[int, Term] = {}

    def prove(self, launches: Iterable[Launch | list[Launch]]) -> Verdict:
        """Compare what launches do; stop at the first failure. Unknown for an instruction that the machine lacks."""
        for launch in launches:
            try:
                if isinstance(self.source, BatchSubject):
                    outcome = run_many(self.source, self.kernel, launch if isinstance(launch, list) else [launch])
                else:
                    assert isinstance(launch, Launch)
                    outcome = run(self.source, self.kernel, launch, self._table)
                    self._table = outcome.table if self.kernel.tables else {}
                for part in outcome.parts:
                    self._part(part)
            except Fault as fault:
                self.verdict.problem = self.verdict.problem or f"{fault} ({launch})"
            if self.verdict.problem:
                break
            self.verdict.launches += 1
        return self.verdict

    def _part(self, part: Part) -> None:
        for pad in part.pads:
            if self._differ(self._with_words(None, pad, part), t.const(0, pad.width)) is not None:
                raise Fault("bits above the last element are not zero")
        if part.elements:
            wanted = self._specified(part.source, part.launch)
            for index, got in part.elements.items():
                self._element(index, self._with_words(index, got, part), wanted, part.launch)
                if self.verdict.problem:
                    return
        self._cells(part)

    def _specified(self, source: Subject, launch: Launch) -> Term:
        code, word = t.part(t.var("x", source.src_bits), 0, source.rule.src.bits), t.var("word", 32)
        at = 0 if launch.given is None else launch.given.scale_at
        if at == 0:
            return specification(source.rule, code, word)
        scale = cell(at) if at == WIDE else t.arithmetic("convert", 64, (cell(at),), t.SINGLE, t.TWICE, "rn")
        return scaled(source.rule, code, scale, word)

    def _cells(self, part: Part) -> None:
        """Check what a thread does to the maximum (an unknown here) and to the flag of a fused kernel."""
        src, given = part.source.rule.src, part.launch.given or Given()
        codes = [t.part(element(index, part.source.src_bits), 0, src.bits) for index in sorted(part.elements)]
        wanted = {at: cell(at) for at in part.cells}
        if given.amax:
            if part.observed is None or self._differ_anywhere(part, part.observed, largest(src, codes)):
                raise Fault("a thread does not give its largest magnitude to its warp")
            most, before = t.var("most", 32), cell(AMAX)
            if part.lane == 31:
                wanted[AMAX] = t.ite(t.slt(before, most), most, before)
        if given.finite:
            wanted[FINITE] = t.ite(not_finite(src, codes), t.const(0, 8), cell(FINITE))
        for at, got in part.cells.items():
            if self._differ_anywhere(part, got, wanted[at]):
                raise Fault(f"a thread leaves another number at {at:#x} than it should")

    def _differ_anywhere(self, part: Part, got: Term, wanted: Term) -> bool:
        """Whether two terms may differ for some elements of a part."""
        got, wanted = (_from(min(part.elements, default=0), term) for term in (got, wanted))
        if (got, wanted) in self._done:
            return False
        differ = self._differ(got, wanted) is not None or self.verdict.problem != ""
        if not differ:
            self._done.add((got, wanted))
        return differ

    def _with_words(self, index: int | None, got: Term, part: Part) -> Term:
        """A result with unknowns in place of its own random word, and of those written with it."""
        given = part.launch.given
        if part.source.rule.rounding != STOCHASTIC or given is None:
            return got
        near = {int(x.param[1:]) for x in t.variables(got) if x.param[0] == "x"}
        if index is not None:
            near.add(index)
        words = {random_word(seed(), given.offset + i): t.var(f"word{i}", 32) for i in near}
        got = t.substitute(got, words)
        if seed() in t.variables(got):
            raise Fault("an element depends on another random word than its own")
        return got

    def _element(self, index: int, got: Term, wanted: Term, launch: Launch) -> None:
        # Elements at the same place of other tiles have the same term when they are counted from their own.
        got = _from(index, got)
        if got is wanted or (got, wanted) in self._done:
            return
        alone = _alone(got)
        if alone is not wanted and (alone, wanted) not in self._done:
            if self._differ(alone, wanted) is None:
                self._done.add((alone, wanted))
            elif (model := self._differ(got, wanted)) is not None:
                self._refuted(index, got, wanted, model, launch)
        self._done.add((got, wanted))

    def _refuted(self, index: int, got: Term, wanted: Term, model: Mapping[str, int], launch: Launch) -> None:
        inputs = {x: np.array(model.get(x.param, 0)) for x in t.variables(got, wanted)}
        codes = {index + int(name[1:] or 0): code for name, code in model.items() if name[0] == "x"}
        results = int(evaluate(got, inputs)), int(evaluate(wanted, inputs))
        self.verdict.problem = "an element differs from the specification"
        self.verdict.counterexample = Counterexample(index, codes, *results, launch)

    def _differ(self, got: Term, wanted: Term) -> dict[str, int] | None:
        """Inputs, by name, for which two terms differ. None if there are none or, with a problem, no answer."""
        if got is wanted:
            return None
        with_product = self._of_product(got, wanted)
        if with_product is not None and self.ask_for(with_product) is None:
            return None
        return self.ask_for(t.invert(t.eq(got, wanted)))

    def _of_product(self, got: Term, wanted: Term) -> Term | None:
        """Compare two terms that multiply the same two numbers, with an unknown for the product. None for other terms.

        The question is stronger, because any number may be the product, and free of multiplications. The product of two
        FLOATs is exact in DOUBLE, with 48 digits, so its roundings to FLOAT are roundings of a DOUBLE. The remainder of
        a product that is cut off is exact as well, and is not 0 beyond the largest FLOAT. A product that is NaN is
        PTX's NaN. 0 times anything is 0 or NaN, infinity times anything is infinite or NaN, and NaN times anything is
        NaN.
        """
        products = [x for x in t.in_order(wanted) if x.op == "fmul" and x.param[0] == t.TWICE]
        if len(products) != 1:
            return None
        [specified], new = products, dict[Term, Term]()
        product, beyond, nan = t.var("product", 64), t.var("beyond", 32), t.const(0x7FFFFFFF, 32)
        size, factor = t.magnitude(product), t.magnitude(specified.args[0])
        zero, infinite = t.const(0, 63), t.const(t.infinity(t.TWICE), 63)
        for x in t.in_order(got):
            if x.op == "fmul" and x.width >= 32 and self._equal_numbers(x, specified):
                rounded = t.arithmetic("convert", 32, (product,), t.TWICE, t.SINGLE, x.param[1])
                new[x] = product if x.width == 64 else t.ite(t.is_nan(product, t.TWICE), nan, rounded)
            elif x.op == "fma" and x.width == 32 and self._equal_numbers(x, specified):
                sign = t.part(x.args[2], 31, 1)
                cut = [y for y in new if y.width == 32 and t.magnitude(y) is t.magnitude(x.args[2])]
                if len(cut) != 1 or cut[0].param[1] != "rz" or sign is not t.invert(t.part(cut[0], 31, 1)):
                    return None
                rest = t.arithmetic("convert", 64, (t.substitute(x.args[2], new),), t.SINGLE, t.TWICE, "rn")
                rest = t.arithmetic("fadd", 64, (product, rest), t.TWICE, "rn")
                rest = t.arithmetic("convert", 32, (rest,), t.TWICE, t.SINGLE, x.param[1])
                far = t.conj(t.invert(t.ult(size, t.const((1023 + 128) << 52, 63))), t.ult(size, infinite))
                new[x] = t.ite(far, beyond, rest)
        if not new:
            return None
        differ = t.invert(t.eq(t.substitute(got, new), t.substitute(wanted, {specified: product})))
        limits = [
            t.invert(t.eq(t.magnitude(beyond), t.const(0, 31))),
            t.invert(t.conj(t.eq(factor, zero), t.ult(zero, size), t.invert(t.ult(infinite, size)))),
            t.invert(t.conj(t.eq(factor, infinite), t.ult(size, infinite))),
            t.invert(t.conj(t.ult(infinite, factor), t.invert(t.ult(infinite, size)))),
        ]
        if any(x.width == 32 for x in new):
            limits.append(t.bitwise("or", t.eq(t.part(product, 0, 5), t.const(0, 5)), t.is_nan(product, t.TWICE)))
        return t.conj(differ, *limits)

    def _equal_numbers(self, one: Term, other: Term) -> bool:
        """Whether the first two operands are the same two numbers in either order."""
        return any(
            all(
                self.ask_for(self._other_number(a, b)) is None and not self.verdict.problem
                for a, b in zip(one.args, args, strict=False)
            )
            for args in (other.args, other.args[::-1])
        )

    def _other_number(self, a: Term, b: Term) -> Term:
        if a.width == 32:
            a = t.arithmetic("convert", 64, (a,), t.SINGLE, t.TWICE, "rn")
        both = t.conj(t.is_nan(a, t.TWICE), t.is_nan(b, t.TWICE))
        return t.conj(t.invert(both), t.invert(t.eq(a, b)))

    def ask_for(self, condition: Term) -> dict[str, int] | None:
        """Inputs that make a condition true. None if there are none, or with a problem, if the solver has no answer."""
        if t.is_zero(condition):
            return None
        found = t.variables(condition)
        if sum(x.width for x in found) <= EXHAUSTED:
            begin = time.process_time()
            model = exhaust(condition, found)
            self._spent("exhaustion", begin)
            return model
        condition = without_look_ups(condition)
        begin = time.process_time()
        try:
            state, model = ask(condition, self.limit)
        except TypeError as error:
            raise Unknown(str(error)) from error
        self._spent(SOLVER, begin)
        if state not in ("sat", "unsat"):
            self.verdict.problem = f"{SOLVER} gave no answer within {self.limit:g} s"
        return model if state == "sat" else None

    def _spent(self, method: str, begin: float) -> None:
        self.verdict.seconds[method] = self.verdict.seconds.get(method, 0.0) + time.process_time() - begin


def _from(index: int, term: Term) -> Term:
    """A term as the element `index` sees it: its own unknowns are x and word, the next one's x+1 and word+1."""
    order, new = t.in_order(term), {}
    for unknown in order:
        if unknown.op == "var" and (known := _NUMBERED.fullmatch(unknown.param)):
            away = int(known[2]) - index
            new[unknown] = t.var(f"{known[1]}{away:+}" if away else known[1], unknown.width)
    return t.substitute(term, new, order)


def _alone(got: Term) -> Term:
    """A result as a function of its own inputs.

    What depends on other inputs alone, such as the presence of a NaN among them, becomes an unknown. The proof then
    asks for more than must hold. Inputs that all elements share, such as the scale, stay.
    """
    mine, others, new = set[Term](), set[Term](), dict[Term, Term]()
    for term in t.in_order(got):
        own = term.op == "var" and term.param in ("x", "word")
        if own or not mine.isdisjoint(term.args):
            mine.add(term)
            for arg in term.args:
                if arg in others and arg not in mine and arg not in new:
                    new[arg] = t.var(f"other{len(new)}", arg.width)
        if (term.op == "var" and not own and not is_cell(term)) or not others.isdisjoint(term.args):
            others.add(term)
    return t.substitute(got, new)


def _every(found: Sequence[Term]) -> dict[Term, NDArray]:
    """All combinations of values of some unknowns; the first varies fastest."""
    numbers, low, inputs = np.arange(1 << sum(x.width for x in found), dtype=np.uint64), 0, {}
    for x in found:
        inputs[x] = numbers >> np.uint64(low) & np.uint64((1 << x.width) - 1)
        low += x.width
    return inputs


def exhaust(condition: Term, found: Sequence[Term]) -> dict[str, int] | None:
    """The first input, of all inputs, that makes a condition true. Fault if a look-up leaves its table."""
    inputs = _every(found)
    true = np.atleast_1d(_evaluate(condition, inputs))
    at = int(true.argmax())
    return {x.param: int(values[at]) for x, values in inputs.items()} if true[at] else None


def _evaluate(term: Term, inputs: Mapping[Term, NDArray]) -> NDArray:
    try:
        return evaluate(term, inputs)
    except IndexError as error:
        raise Fault(str(error)) from None


def tabulated(term: Term) -> Term:
    """A term of few inputs as comparisons with constants; any other term unchanged."""
    found = t.variables(term)
    if sum(x.width for x in found) > EXHAUSTED:
        return term
    values = _evaluate(term, _every(found))
    starts = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()]
    return t.search(t.join(found), starts[1:], values[starts].tolist(), term.width)


def without_look_ups(condition: Term) -> Term:
    """The term with comparisons in place of look-ups whose addresses depend on a few narrow inputs."""
    done: dict[Term, Term] = {}
    for term in t.in_order(condition):
        found = t.variables(term) if term.op == "lookup" else []
        if found and sum(x.width for x in found) <= EXHAUSTED:
            done[term] = tabulated(term)
        else:
            done[term] = t.rebuild(term, tuple(done[arg] for arg in term.args))
    return done[condition]
