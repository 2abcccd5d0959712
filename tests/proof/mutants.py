# SPDX-License-Identifier: Apache-2.0
"""Tests the prover: change one constant or opcode of a kernel's PTX, and see whether the prover finds the change."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tests.proof.instructions import OPERATIONS
from tests.proof.launches import Launch, Subject, run
from tests.proof.machine import Unknown
from tests.proof.prover import Prover
from tests.proof.ptx import Instruction, Kernel

#: Words of opcodes that stand in for each other.
_TWINS = {
    "add": "sub", "sub": "add", "and": "or", "or": "and", "xor": "or", "min": "max", "max": "min", "eq": "ne",
    "ne": "eq", "lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "rn": "rz", "rz": "rn", "rni": "rzi", "rzi": "rni",
}  # fmt: skip
_NUMBER = re.compile(r"-?\d+")


def judge(source: Subject, kernel: Kernel, launch: Launch, seed: int, count: int) -> Counter[str]:
    """Judge `count` mutants of instructions that a launch executes.

    Returns how many are "found" (by a counterexample or a fault), "equal" (proved to compute the same) and "open" (the
    solver has no answer, or the machine does not know the instruction).
    """
    order, judged = random.Random(seed), Counter[str]()
    every = [
        (at, new) for at in sorted(run(source, kernel, launch).executed) for new in _changes(kernel.body[at], order)
    ]
    for at, new in order.sample(every, min(count, len(every))):
        prover = Prover(source, replace(kernel, body=[*kernel.body[:at], new, *kernel.body[at + 1 :]]))
        try:
            verdict = prover.prove([launch])
        except Unknown:
            judged["open"] += 1
            continue
        judged["equal" if verdict.proved else "open" if "no answer" in verdict.problem else "found"] += 1
    return judged


def _changes(instruction: Instruction, order: random.Random) -> Iterator[Instruction]:
    """Variants of an instruction: another opcode, or one constant with one bit changed."""
    words = instruction.name.split(".")
    for place, word in enumerate(words):
        name = ".".join((*words[:place], _TWINS.get(word, word), *words[place + 1 :]))
        if name != instruction.name and name in OPERATIONS:
            yield replace(instruction, name=name)
    for place, operand in enumerate(instruction.operands):
        if _NUMBER.fullmatch(operand):
            number = int(operand) ^ 1 << order.randrange(max(int(operand).bit_length(), 3))
            yield replace(
                instruction, operands=(*instruction.operands[:place], str(number), *instruction.operands[place + 1 :])
            )
