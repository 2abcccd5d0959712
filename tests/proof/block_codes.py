# SPDX-License-Identifier: Apache-2.0
"""Proves that a block quantizer gives each element the right code, for every scale that a block can have.

The kernel is the one that reads the scales, "elements" in `gpucast.quantization.cuda.source`. One thread, whose
elements are aligned and in one block, is executed for each code of a scale on unknown elements. The proof assumes what
the search for the scale guarantees: all elements are finite, or the scale is NaN. It then compares the code of each
element with the specification, for every value of that element and any values of the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.cuda.source import quantize_arguments, quantize_kernel
from gpucast.quantization.formats import Format
from tests.proof import terms as t
from tests.proof.certificate import digest, ptx
from tests.proof.launches import Launch, Subject, element, run
from tests.proof.machine import Fault, Unknown
from tests.proof.prover import Prover, Verdict, tabulated
from tests.proof.ptx import read
from tests.proof.specification import specification
from tests.proof.terms import Term, const

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: Where the scales are.
_SCALES = 0x7300_0000_0000

#: What solvers do not know.
_UNSOLVED = ("fdiv", "lookup")


def kernel_of(format: Format, src: DType) -> Subject:
    """The kernel that gives elements their codes, for blocks of any length."""
    rule = CastRule(src, format.element)
    return Subject(quantize_kernel(rule, format, "elements"), rule)


def digest_of(format: Format, src: DType, arch: str) -> str:
    """The identity of the PTX of a format's kernel, as a certificate names it."""
    return digest(ptx(kernel_of(format, src).kernel, arch))


def every_scale(format: Format) -> Iterable[int]:
    """The codes of all scales, with NaN."""
    return range(1 << format.scale.bits)


def prove(format: Format, src: DType, arch: str) -> dict[str, Any]:
    """Prove a format's kernel: its entry in a certificate. ValueError unless scales are powers of two."""
    if format.scale.family != "e8m0" or not format.element.is_float or not isinstance(format.block, tuple):
        raise ValueError(f"{format} has other scales than powers of two, or integers; expected mxfp8e4m3, ...")
    t.forget()
    source = kernel_of(format, src)
    text = ptx(source.kernel, arch)
    verdict = BlockProof(format, src, Prover(source, read(text))).prove(every_scale(format))
    return {
        "format": format.name,
        "src": src.name,
        "kernel": source.kernel.name,
        "ptx": digest(text),
        "verdict": "proved" if verdict.proved else verdict.problem,
        "seconds": {method: round(seconds, 3) for method, seconds in verdict.seconds.items()},
        "scales": verdict.launches,
    }


@dataclass
class BlockProof:
    """The proof for one format whose scales are powers of two. The verdict counts the scales as launches."""

    format: Format
    src: DType
    prover: Prover
    #: Conditions on several finite elements that are always true or false; None for others.
    _known: dict[Term, int | None] = field(default_factory=dict)
    #: Terms that are no conditions on several elements.
    _closed: set[Term] = field(default_factory=set)
    #: Conditions that are proved to be never true.
    _done: set[Term] = field(default_factory=set)

    def prove(self, scales: Iterable[int]) -> Verdict:
        """Prove some codes of a scale; stop at the first failure."""
        verdict = self.prover.verdict
        for code in scales:
            try:
                codes = t.join(self.codes(code))
                if code != self.format.scale.nan_code:
                    codes = self._with_finite(codes)
                bits = self.format.element.bits
                for index in range(codes.width // bits):
                    self._compare(code, index, t.part(codes, index * bits, bits))
            except (Fault, Unknown) as fault:
                verdict.problem = verdict.problem or f"{fault} (scale {code:#x})"
            if verdict.problem:
                break
            verdict.launches += 1
        return verdict

    def codes(self, scale: int) -> list[Term]:
        """The codes that the first thread writes when every block has this scale."""
        assert isinstance(self.format.block, tuple)
        source, kernel = self.prover.source, self.prover.kernel
        assert isinstance(source, Subject)
        length, block = 2 * max(source.kernel.elements, *self.format.block), self.format.block[-1]
        given = quantize_arguments(BlockGrid.of(self.format, (length,), 0), _SCALES)
        launch = Launch(length, threads=((0, 0),), more=given)
        scales = {_SCALES + number: const(scale, 8) for number in range(length // block)}
        [part] = run(source, kernel, launch, scales).parts
        if list(part.elements) != list(range(source.kernel.elements)):
            raise Fault("a thread does not write its own elements")
        return list(part.elements.values())

    def _compare(self, scale: int, index: int, got: Term) -> None:
        """Compare the code of one element. When the scale is NaN the code must be 0 for any element."""
        x = element(index, self.src.bits)
        # Elements mostly have the same term when their unknowns are counted from their own.
        named = {y: t.var(f"x{int(y.param[1:]) - index:+}", y.width) for y in (x, *t.variables(got))}
        got, x, others = t.substitute(got, named), named[x], [y for y in named.values() if y is not named[x]]
        if scale == self.format.scale.nan_code:
            equal = self._never(_differ(got, const(0, self.format.element.bits)))
        else:
            wanted, finite = self._specified(x, scale), t.conj(*map(self._is_finite, (x, *others)))
            equal = self._by_product(got, wanted, x) or self._never(
                # For a solver, which is to see comparisons in place of a product.
                t.conj(finite, _differ(got, tabulated(wanted) if others else wanted))
            )
        if not equal:
            self.prover.verdict.problem = (
                self.prover.verdict.problem
                or f"element {index} with the scale {scale:#x} differs from the specification"
            )

    def _specified(self, x: Term, scale: int) -> Term:
        """The code of a finite element: it is divided by the scale in DOUBLE, which has room for any such quotient."""
        number = specification(resolve(self.src, _DOUBLE), x)
        power = const((self.format.scale.bias - scale) << _DOUBLE.mantissa_bits, 64)
        quotient = t.ite(t.eq(t.magnitude(x), const(0, x.width - 1)), number, t.add(number, power))
        return specification(resolve(_DOUBLE, self.format.element), quotient)

    def _by_product(self, got: Term, wanted: Term, x: Term) -> bool:
        """Whether a proof through the product that a kernel makes of a FLOAT and the reciprocal of the scale succeeds.

        Whatever the scale, a kernel gives any product its code, infinity too: one question for all scales. The product
        of `x`, which FLOAT rounds where it is subnormal or infinite, has the specified code: a question for each scale,
        of one unknown and without the kernel.
        """
        products = [y for y in t.in_order(got) if y.op == "fmul" and y.args[0].op == "var" and y.args[1].constant]
        mine = [y for y in products if y.args[0] is x]
        if self.src is not _FLOAT or len(mine) != 1:
            return False
        unknown = {y: t.var(f"product{number}", 32) for number, y in enumerate([*mine, *(set(products) - set(mine))])}
        got = t.substitute(got, unknown)
        numbers = [t.invert(t.is_nan(y, t.SINGLE)) for y in unknown.values()]
        if set(t.variables(got)) - set(unknown.values()):
            return False
        of_product, product = resolve(_FLOAT, self.format.element), unknown[mine[0]]
        rounded = t.conj(self._is_finite(x), _differ(specification(of_product, mine[0]), wanted))
        coded = t.conj(*numbers, _differ(got, specification(of_product, product)))
        return self._never(coded) and self._never(rounded)

    def _never(self, condition: Term) -> bool:
        """Whether a condition is proved to be never true; it is asked once."""
        if condition not in self._done:
            if self.prover.ask_for(condition) is not None or self.prover.verdict.problem:
                return False
            self._done.add(condition)
        return True

    def _is_finite(self, x: Term) -> Term:
        return t.ult(t.magnitude(x), const(self.src.inf_code, x.width - 1))

    def _with_finite(self, got: Term) -> Term:
        """Simplify a term by the assumption that all elements are finite."""
        while True:
            before, known = got, self._known.items()
            got = t.substitute(got, {term: const(value, 1) for term, value in known if value is not None})
            if got is not before:
                continue  # Conditions become known ones when those inside them are gone.
            condition = next((term for term in t.in_order(got) if self._is_open(term)), None)
            if condition is None:
                return got
            finite = list(map(self._is_finite, t.variables(condition)))
            never = [self.prover.ask_for(t.conj(*finite, term)) is None for term in (condition, t.invert(condition))]
            self._known[condition] = int(never[1]) if any(never) else None

    def _is_open(self, term: Term) -> bool:
        """Whether a term compares several elements with a constant and its value is unknown."""
        if term.width != 1 or term in self._closed or term in self._known:
            return False
        compares = any(arg.constant for arg in term.args) and len(t.variables(term)) > 1
        if not compares or any(x.op in _UNSOLVED for x in t.in_order(term)):
            self._closed.add(term)
            return False
        return True


def _differ(got: Term, wanted: Term) -> Term:
    return t.invert(t.eq(got, wanted))
