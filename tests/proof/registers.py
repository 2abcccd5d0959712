# SPDX-License-Identifier: Apache-2.0
"""The registers of a block of threads, with known numbers, and the operands of instructions that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.proof import terms as t
from tests.proof.evaluation import Program
from tests.proof.machine import Fault, Unknown
from tests.proof.ptx import Kernel
from tests.proof.spaces import PARAMS, SHARED, Bytes, NDArray
from tests.proof.terms import Term, const, var
from tests.proof.warps import LANES

#: Registers that a thread only reads, in the order in which `Registers.clear` takes them.
SPECIAL = ("%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x", "%laneid")


class Registers:
    """A row of numbers for each register of a kernel: to read one before it is written is a fault.

    `symbols` has the addresses of what the kernel names, `params` the memory of its parameters, which `give` fills, and
    `sizes` how much shared and local memory it has.
    """

    def __init__(self, kernel: Kernel, threads: int) -> None:
        self.kernel, self.count = kernel, threads
        self.slots: dict[str, int] = {}
        self.symbols: dict[str, int] = {}
        self.sizes = self._lay_out()
        self.values = np.zeros((0, threads), np.uint64)
        self.known = np.zeros((0, threads), bool)
        #: The registers that all threads have written.
        self.whole: set[int] = set()

    def clear(self, special: Sequence[Any]) -> None:
        """Forget all numbers; `special` are the new ones of `SPECIAL`."""
        self.values = np.zeros((len(self.slots), self.count), np.uint64)
        self.known = np.zeros(self.values.shape, bool)
        self.whole = {self.slots[name] for name in SPECIAL if name in self.slots}
        for name, numbers in zip(SPECIAL, special, strict=True):
            if name in self.slots:
                self.values[self.slots[name]] = numbers

    def _lay_out(self) -> tuple[int, int]:
        """Place what the kernel names; the sizes of shared and local memory."""
        kernel, sizes = self.kernel, []
        for symbols, begin in ((kernel.shared, SHARED), (kernel.local, 0)):
            at = begin
            for name, (size, align) in symbols.items():
                self.symbols[name] = at = -(-at // align) * align
                at += size
            sizes.append(at - begin)
        at = 0
        for name, (size, align) in kernel.params.items():
            at = -(-at // align) * align
            self.symbols[name] = PARAMS + at
            at += size
        self.params = Bytes("param", at, PARAMS)
        return sizes[0], sizes[1]

    def give(self, params: Sequence[bytes]) -> None:
        """Set the parameters, in their order."""
        for (name, (size, _)), data in zip(self.kernel.params.items(), params, strict=True):
            if len(data) != size:
                raise ValueError(f"the parameter {name} has {size} bytes; got {len(data)}")
            begin = self.symbols[name] - PARAMS
            self.params.data[0, begin : begin + size] = np.frombuffer(data, np.uint8)
            self.params.known[0, begin : begin + size] = True

    def slot(self, register: str) -> int:
        return self.slots.setdefault(register, len(self.slots))

    def width(self, register: str) -> int:
        if register in SPECIAL:
            return 32
        try:
            return self.kernel.width(register)
        except KeyError:
            raise Unknown(f"proof: the operand {register} is unknown") from None

    def number(self, operand: str) -> int | None:
        """The value of a constant or the address of a symbol; None for a register."""
        if operand in self.symbols:
            return self.symbols[operand]
        if operand[:2] in ("0f", "0d", "0F", "0D"):
            return int(operand[2:], 16)
        if operand == "WARP_SZ":
            return LANES
        try:
            return int(operand.removesuffix("U"), 0)
        except ValueError:
            return None

    def term(self, operand: str, width: int, inputs: dict[Term, int]) -> Term:
        """An operand; `inputs` takes the registers that it reads."""
        if operand.startswith("{"):
            return t.join(self.register(name.strip(), inputs) for name in operand.strip("{} ").split(","))
        number = self.number(operand)
        if number is not None:
            return const(number, width)
        term = self.register(operand, inputs)
        if term.width < width:
            raise Unknown(f"proof: {operand} has {term.width} bits where {width} are needed")
        return t.part(term, 0, width)

    def register(self, name: str, inputs: dict[Term, int]) -> Term:
        # Named by its place, so that equal instructions of all kernels share a program.
        slot = self.slot(name)
        found = next((term for term, one in inputs.items() if one == slot), None)
        if found is None:
            found = var(f"in{len(inputs)}", self.width(name))
            inputs[found] = slot
        return found

    def read(self, slot: int, group: NDArray) -> NDArray:
        """Numbers of some threads, which change where the register of all threads is written."""
        if not self.is_known(slot, group):
            name = next(name for name, one in self.slots.items() if one == slot)
            raise Fault(f"{name} is read before it is written")
        # All threads go in order.
        numbers = self.values[slot]
        return numbers if len(group) == self.count else np.asarray(numbers[group])

    def is_known(self, slot: int, group: NDArray) -> bool:
        return slot in self.whole or bool(self.known[slot, group].all())

    def write(self, slot: int, group: NDArray, values: Any) -> None:
        if len(group) == self.count:
            self.values[slot] = values
            self.whole.add(slot)
        else:
            self.values[slot, group] = values
            self.known[slot, group] = True

    def reader(self, operand: str, width: int) -> Callable[[NDArray], NDArray]:
        """A function that reads an operand."""
        inputs: dict[Term, int] = {}
        value = program(self.term(operand, width, inputs))
        slots = [inputs[term] for _, term in value.variables]

        def read(group: NDArray) -> NDArray:
            return np.broadcast_to(value.of(*(self.read(slot, group) for slot in slots)), group.shape)

        return read

    def address(self, operand: str, width: int) -> Callable[[NDArray], NDArray]:
        """A function that computes the addresses that an operand in brackets names."""
        register, _, offset = (one.strip() for one in operand.strip("[]").partition("+"))
        more = np.uint64(int(offset or "0", 0) & ((1 << 64) - 1))
        number = self.number(register)
        if number is not None:
            fixed = np.uint64(number) + more
            return lambda group: np.full(len(group), fixed)
        slot, wide = self.slot(register), self.width(register) == 64
        if not wide and width == 64:
            raise Unknown(f"proof: an address of {self.width(register)} bits: {operand}")
        mask = np.uint64((1 << self.width(register)) - 1)
        return lambda group: (self.read(slot, group) + more) & mask


@cache
def program(term: Term) -> Program:
    return Program(term)
