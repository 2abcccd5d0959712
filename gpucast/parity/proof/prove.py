# SPDX-License-Identifier: Apache-2.0
"""Proves that a kernel gives what the specification says, for every input, from its PTX."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpucast.codegen.cast import KernelSource
from gpucast.parity.proof import terms as t
from gpucast.parity.proof.launches import Launch, Outcome, run, seed
from gpucast.parity.proof.machine import Fault, Unknown
from gpucast.parity.proof.numbers import Array, evaluate
from gpucast.parity.proof.ptx import Kernel
from gpucast.parity.proof.solvers import ask
from gpucast.parity.proof.specification import random_word, specification
from gpucast.parity.proof.terms import Term

#: Inputs of together so many bits are all tried; wider ones are left to a solver.
EXHAUSTED = 16


@dataclass(frozen=True)
class Counterexample:
    """Source codes, by index, for which the element `index` differs; all that are not named may be anything."""

    index: int
    codes: dict[int, int]
    got: int
    wanted: int
    launch: Launch


@dataclass
class Verdict:
    """`seconds` are those of each method: "exhaustion", or the name of a solver. It is proved where `problem` is ""."""

    seconds: dict[str, float] = field(default_factory=dict)
    #: Different terms that were compared, and elements of which they are the result.
    terms: int = 0
    elements: int = 0
    launches: int = 0
    problem: str = ""
    counterexample: Counterexample | None = None

    @property
    def proved(self) -> bool:
        return not self.problem


class Prover:
    """The proof of one kernel. What it has compared it does not compare again: elements of different tiles, threads and
    launches mostly have the same term."""

    def __init__(
        self,
        source: KernelSource,
        kernel: Kernel,
        solvers: Sequence[str],
        limit: float = 60,
        verdict: Verdict | None = None,
    ) -> None:
        self.source, self.kernel, self.solvers, self.limit = source, kernel, solvers, limit
        #: One may be given to go on with: that of a rule with several kernels.
        self.verdict = Verdict() if verdict is None else verdict
        self._done: set[Term] = set()
        self._table: dict[int, Term] = {}
        code = t.part(t.var("x", source.src_bits), 0, source.rule.src.bits)
        self._wanted = specification(source.rule, code, t.var("word", 32))

    def prove(self, launches: Iterable[Launch]) -> Verdict:
        """Execute the launches and compare; ends at the first that fails. Unknown for instructions it does not know."""
        for launch in launches:
            try:
                outcome = run(self.source, self.kernel, launch, self._table)
                self._table = outcome.table if self.kernel.tables else {}
                self._compare(outcome, launch)
            except Fault as fault:
                self.verdict.problem = f"{fault} ({launch})"
            if self.verdict.problem:
                break
            self.verdict.launches += 1
        return self.verdict

    def _compare(self, outcome: Outcome, launch: Launch) -> None:
        for pad in outcome.pads:
            if self._differ(self._with_words(None, pad, launch), t.const(0, pad.width)) is not None:
                raise Fault("bits above the last element are not zero")
        for index, got in outcome.elements.items():
            self._element(index, self._with_words(index, got, launch), launch)
            if self.verdict.problem:
                return
            self.verdict.elements += 1

    def _with_words(self, index: int | None, got: Term, launch: Launch) -> Term:
        """A result with unknowns in place of random words: its own, and those of elements that it is written with."""
        if launch.random is None:
            return got
        near = {int(x.param[1:]) for x in t.variables(got) if x.param[0] == "x"}
        if index is not None:
            near.add(index)
        words = {random_word(seed(), launch.random + i): t.var(f"word{i}", 32) for i in near}
        got = t.substitute(got, words)
        if seed() in t.variables(got):
            raise Fault("an element depends on another random word than its own")
        return got

    def _element(self, index: int, got: Term, launch: Launch) -> None:
        # The same names for all elements, whatever their index.
        found = t.variables(got)
        own = {f"x{index}": "x", f"word{index}": "word"}
        names = {x: t.var(own.get(x.param, f"{chr(97 + place)}{x.width}"), x.width) for place, x in enumerate(found)}
        got = t.substitute(got, names)
        if got in self._done or got is self._wanted:
            return
        model = self._differ(got, self._wanted)
        if model is not None:
            codes = {int(x.param[1:]): model.get(new.param, 0) for x, new in names.items() if x.param[0] == "x"}
            every = t.variables(got, self._wanted)
            results = [
                int(evaluate(term, {x: np.array(model.get(x.param, 0)) for x in every})) for term in (got, self._wanted)
            ]
            codes.setdefault(index, model.get("x", 0))
            self.verdict.problem = "an element differs from the specification"
            self.verdict.counterexample = Counterexample(index, codes, results[0], results[1], launch)
        elif not self.verdict.problem:
            self._done.add(got)
            self.verdict.terms += 1

    def _differ(self, got: Term, wanted: Term) -> dict[str, int] | None:
        """Inputs for which two terms differ, by name; None if there are none, or with a problem, none are known."""
        if got is wanted:
            return None
        found = t.variables(got, wanted)
        if sum(x.width for x in found) <= EXHAUSTED:
            begin = time.monotonic()
            model = exhaust(got, wanted, found)
            self._spent("exhaustion", begin)
            return model
        condition = without_look_ups(t.invert(t.eq(got, wanted)))
        for solver in self.solvers:
            begin = time.monotonic()
            try:
                answer = ask(solver, condition, self.limit)
            except TypeError as error:
                raise Unknown(str(error)) from error
            self._spent(solver, begin)
            if answer.state == "sat":
                return answer.model
            if answer.state != "unsat":
                self.verdict.problem = f"{solver} gave no answer within {self.limit:g} s"
                return None
        return None

    def _spent(self, method: str, begin: float) -> None:
        self.verdict.seconds[method] = self.verdict.seconds.get(method, 0.0) + time.monotonic() - begin


def _every(found: Sequence[Term]) -> dict[Term, Array]:
    """All values of some unknowns together: those of the first vary fastest."""
    numbers, low, inputs = np.arange(1 << sum(x.width for x in found), dtype=np.uint64), 0, {}
    for x in found:
        inputs[x] = numbers >> np.uint64(low) & np.uint64((1 << x.width) - 1)
        low += x.width
    return inputs


def exhaust(got: Term, wanted: Term, found: Sequence[Term]) -> dict[str, int] | None:
    """The first of all inputs for which two terms differ. Fault where a look-up leaves its table."""
    inputs = _every(found)
    differs = np.atleast_1d(_evaluate(got, inputs) != _evaluate(wanted, inputs))
    at = int(differs.argmax())
    return {x.param: int(values[at]) for x, values in inputs.items()} if differs[at] else None


def _evaluate(term: Term, inputs: Mapping[Term, Array]) -> Array:
    try:
        return evaluate(term, inputs)
    except IndexError as error:
        raise Fault(str(error)) from None


def without_look_ups(condition: Term) -> Term:
    """The same with comparisons in place of look-ups, whose addresses come from a few narrow inputs."""
    done: dict[Term, Term] = {}
    for term in t.in_order(condition):
        found = t.variables(term) if term.op == "lookup" else []
        if found and sum(x.width for x in found) <= EXHAUSTED:
            values = _evaluate(term, _every(found))
            starts = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()]
            done[term] = t.search(t.join(found), starts[1:], values[starts].tolist(), term.width)
        else:
            done[term] = t.rebuild(term, tuple(done[arg] for arg in term.args))
    return done[condition]
