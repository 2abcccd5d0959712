# SPDX-License-Identifier: Apache-2.0
"""Executes PTX on terms, one thread at a time up to its next barrier. Where a branch depends on the input the machine
takes both paths and joins them where they meet.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace

from tests.proof import terms as t
from tests.proof.instructions import OPERATIONS
from tests.proof.ptx import Instruction, Kernel
from tests.proof.terms import Term, const

_ACCESS = re.compile(r"(ld|st)(?:\.(param|global|shared))?(?:\.nc)?(?:\.v([248]))?\.([bsuf])(\d+)")
_MOVE = re.compile(r"mov\.[bsuf](\d+)")
#: Instructions without an effect on results.
_NOTHING = {"pmevent"}
#: Asks for memory around an address.
_PREFETCH = "prefetch.global.L2"
#: The maximum over a warp, and of a number in memory and another one.
_WARP_MAX, _RAISE = "redux.sync.max.s32", "red.global.max.s32"
#: Where the memories of a kernel begin: tables and parameters.
_TABLES, _PARAMS = 0x2000_0000, 0x1000_0000
#: The most instructions of a thread.
_LIMIT = 2_000_000


class Fault(Exception):
    """A kernel made a forbidden access: outside its arrays, misaligned, or to a byte that was written before."""


class Unknown(Exception):
    """The machine does not know an instruction, or one use of it."""


@dataclass
class Memory:
    """The bytes that a kernel may read, and the addresses that it may write.

    `sources` are the arrays to read, by address, and `known` are other bytes, by address. `cells` are numbers that
    every thread may read and write. `written` holds the results of the present thread; `done` holds the bytes written
    by any thread. Squares of a transposed cast overlap, and write the same bytes there.
    """

    sources: Sequence[tuple[range, Callable[[int], Term]]]
    writable: Sequence[Collection[int]]
    known: dict[int, Term] = field(default_factory=dict)
    cells: dict[int, Term] = field(default_factory=dict)
    written: dict[int, Term] = field(default_factory=dict)
    done: dict[int, Term] = field(default_factory=dict)
    #: Shared memory: its addresses. Threads write to it before a barrier, each to places of its own.
    shared: range = range(0)
    _image: bytes | None = None

    def empty(self) -> None:
        """Forget shared memory, because each block has its own."""
        for byte in self.shared:
            self.known.pop(byte, None)
        self._image = None

    def load(self, address: Term, size: int, aligned: int) -> list[Term]:
        if not address.constant:
            return self._look_up(address, size)
        at = int(address)
        if at % aligned:
            raise Fault(f"a load of {aligned} bytes at {at:#x} is misaligned")
        cell = self.cells.get(at)
        if cell is not None and cell.width == 8 * size:
            return [t.part(cell, 8 * byte, 8) for byte in range(size)]
        found = []
        for byte in range(at, at + size):
            value = self.known.get(byte)
            if value is None:
                content = next((content for addresses, content in self.sources if byte in addresses), None)
                if content is None:
                    raise Fault(f"a load reads the byte {byte:#x}, outside of the arrays")
                value = self.known[byte] = content(byte)
            found.append(value)
        return found

    def _look_up(self, address: Term, size: int) -> list[Term]:
        """Read constants in shared memory at an address that depends on the input."""
        if self._image is None:
            # A kernel of many casts has room for the largest of their tables.
            filled = itertools.takewhile(lambda term: term is not None, map(self.known.get, self.shared))
            terms = [term for term in filled if term is not None]
            if not terms or not all(term.constant for term in terms):
                raise Fault("a look-up in a table that is not filled")
            self._image = bytes(map(int, terms))
        found = t.arithmetic("lookup", 8 * size, (address,), self.shared.start, self._image)
        return [t.part(found, 8 * byte, 8) for byte in range(size)]

    def store(self, address: Term, values: list[Term], aligned: int) -> None:
        at = int(address)
        if at % aligned:
            raise Fault(f"a store of {aligned} bytes at {at:#x} is misaligned")
        for byte, value in enumerate(values, at):
            if byte in self.shared:
                if self.known.get(byte, value) is not value:
                    raise Fault(f"the byte {byte:#x} of shared memory is written twice")
                self.known[byte] = value
                self._image = None
            elif not any(byte in addresses for addresses in self.writable):
                raise Fault(f"a store writes the byte {byte:#x}, outside of the array")
            elif self.done.setdefault(byte, value) is not value or byte in self.written:
                raise Fault(f"the byte {byte:#x} is written twice")
            else:
                self.written[byte] = value

    def change(self, address: int, value: Term, condition: Term) -> None:
        """Store to a cell under a condition."""
        cell = self.cells.get(address)
        if cell is None or cell.width != value.width:
            raise Fault(f"a store to {address:#x} that depends on the input")
        self.cells[address] = t.ite(condition, value, cell)


@dataclass
class _State:
    """A state of a thread. `path` has the conditions under which the thread gets there."""

    at: int
    registers: dict[str, Term]
    path: tuple[Term, ...] = ()


class Machine:
    """A kernel that is ready to run on `memory`. The machine adds the kernel's tables and parameters to it."""

    def __init__(self, kernel: Kernel, memory: Memory, params: Sequence[Sequence[Term]]) -> None:
        self.kernel, self.memory = kernel, memory
        self.symbols: dict[str, int] = {}
        at = 0x400
        for name, (size, align) in kernel.shared.items():
            self.symbols[name] = at = -(-at // align) * align
            at += size
        memory.shared = range(0x400, at)
        at = _TABLES
        for name, table in kernel.tables.items():
            at = self._place(name, [const(byte, 8) for byte in table], at)
        at = _PARAMS
        for name, data in zip(kernel.params, params, strict=True):
            if len(data) != kernel.params[name][0]:
                raise ValueError(f"proof: the parameter {name} has {kernel.params[name][0]} bytes, not {len(data)}")
            at = self._place(name, data, at)
        self._constants: dict[tuple[str, int], Term] = {}
        self._always = const(1, 1)
        #: The instructions that threads have come to, by number.
        self.executed: set[int] = set()
        #: What the present thread gave to the maximum of its warp.
        self.observed: Term | None = None
        self._cells: dict[int, Term] | None = None

    def begin(self) -> None:
        """Start another thread, which finds the cells in their first state."""
        self._cells = self._cells or self.memory.cells
        self.memory.cells, self.memory.written, self.observed = dict(self._cells), {}, None

    def _place(self, name: str, data: Sequence[Term], at: int) -> int:
        self.symbols[name] = at
        self.memory.known.update(enumerate(data, at))
        return -(-(at + len(data)) // 256) * 256

    def thread(self, block: int, number: int) -> Generator[None, None, None]:
        """Run a thread; the generator stops at each barrier."""
        special = {"%tid.x": number, "%ctaid.x": block, "%laneid": number % 32}
        waiting = [_State(0, {name: const(value, 32) for name, value in special.items()})]
        steps, ended = 0, False
        while waiting:
            # In the order of the text, so that paths wait where they meet.
            here = waiting.pop(min(range(len(waiting)), key=lambda i: waiting[i].at))
            while True:
                if waiting:
                    # Where several paths meet they are one.
                    for other in [state for state in waiting if state.at == here.at]:
                        waiting.remove(other)
                        here = _merged(here, other)
                    if not waiting and not ended:
                        here.path = ()  # Nothing is elsewhere: all paths have met.
                    if any(state.at < here.at for state in waiting):
                        waiting.append(here)
                        break
                steps += 1
                if steps > _LIMIT:
                    raise Fault("a thread does not end")
                self.executed.add(here.at)
                instruction = self.kernel.body[here.at]
                name = instruction.name
                if name.startswith("bra"):
                    if not self._branch(instruction, here, waiting):
                        break
                elif name == "ret":
                    ended = ended or bool(here.path)
                    break
                elif name == "bar.sync":
                    if waiting or here.path:
                        raise Fault("a barrier that not all threads reach")
                    yield None
                    here.at += 1
                else:
                    self._execute(instruction, here)
                    here.at += 1

    def _branch(self, instruction: Instruction, here: _State, waiting: list[_State]) -> bool:
        target = self.kernel.labels[instruction.operands[0]]
        condition = self._guard(instruction, here)
        if condition.constant:
            here.at = target if int(condition) else here.at + 1
            return True
        waiting.append(_State(target, dict(here.registers), (*here.path, condition)))
        waiting.append(_State(here.at + 1, here.registers, (*here.path, t.invert(condition))))
        return False

    def _guard(self, instruction: Instruction, here: _State) -> Term:
        if instruction.guard is None:
            return self._always
        name, negated = instruction.guard
        condition = here.registers[name]
        return t.invert(condition) if negated else condition

    def _execute(self, instruction: Instruction, here: _State) -> None:
        guard = self._guard(instruction, here)
        if t.is_zero(guard) or instruction.name in _NOTHING:
            return
        name, operands, registers = instruction.name, instruction.operands, here.registers
        operation = OPERATIONS.get(name)
        if operation is not None and len(operands) == len(operation[0]) + 1:
            try:
                found = operation[1](*map(self._value, operands[1:], operation[0], (registers,) * len(operands)))
            except (TypeError, ZeroDivisionError) as error:
                raise Unknown(f"proof: {instruction.text}: {error}") from error
            self._set(operands[0], found, here, guard)
        elif name == _PREFETCH:
            # What it asks for must be in an array, as for a load.
            load = replace(instruction, name="ld.global.u8", operands=("_", *operands))
            self._execute(load, here)
        elif name == _WARP_MAX:
            if here.path or self.observed is not None or self._number(operands[2]) != 0xFFFFFFFF:
                raise Fault(f"not all threads of a warp reach it once: {instruction.text}")
            self.observed = self._value(operands[1], 32, registers)
            self._set(operands[0], t.var("most", 32), here, guard)
        elif name == _RAISE:
            at = int(self._value(operands[0].strip("[]"), 64, registers))
            value, cell = self._value(operands[1], 32, registers), self.memory.cells.get(at, const(0, 32))
            self.memory.change(at, t.ite(t.slt(cell, value), value, cell), t.conj(guard, *here.path))
        elif access := _ACCESS.fullmatch(name):
            self._access(instruction, access, here, guard)
        elif move := _MOVE.fullmatch(name):
            self._set(operands[0], self._value(operands[1], int(move[1]), registers), here, guard)
        else:
            raise Unknown(f"proof: the instruction {name} is unknown to the prover: {instruction.text}")

    def _access(self, instruction: Instruction, access: re.Match[str], here: _State, guard: Term) -> None:
        kind, space, count, sign, bits = access.groups()
        size, many = int(bits) // 8, int(count or 1)
        load, (one, other) = kind == "ld", instruction.operands
        register, _, offset = (other if load else one).strip("[]").partition("+")
        base = self._value(register.strip(), 64 if register.startswith("%rd") else 32, here.registers)
        if register in self.symbols or register in self.kernel.params:
            base = const(self.symbols[register], 64)
        address = t.add(base, const(int(offset or "0"), base.width))
        self._check_space(instruction, space, address)
        if not load and address.constant and int(address) in self.memory.cells:
            value = self._value(other, int(bits), here.registers)
            self.memory.change(int(address), value, t.conj(guard, *here.path))
            return
        if not guard.constant or (here.path and not load):
            raise Unknown(f"proof: an access that depends on the input: {instruction.text}")
        if load:
            loaded = self.memory.load(address, size * many, size * many)
            names = one.strip("{} ").split(",") if many > 1 else [one]
            for number, name in enumerate(names):
                value = t.join(loaded[size * number : size * (number + 1)])
                if name.strip() != "_":
                    value = t.resize(value, self.kernel.width(name.strip()), sign == "s")
                    self._set(name.strip(), value, here, guard)
        else:
            names = other.strip("{} ").split(",") if many > 1 else [other]
            values = [self._value(name.strip(), int(bits), here.registers) for name in names]
            self.memory.store(address, [t.part(v, 8 * i, 8) for v in values for i in range(size)], size * many)

    def _check_space(self, instruction: Instruction, space: str | None, address: Term) -> None:
        """Fault for an address of another memory than the instruction names. Without a name any will do."""
        if address.constant:
            at = int(address)
            within = "shared" if at in self.memory.shared else "param" if _PARAMS <= at < _TABLES else "global"
        else:
            # Only look-ups in shared memory depend on the input.
            within = "shared"
        if space not in (None, within):
            raise Fault(f"an address of {within} memory: {instruction.text}")
        if within == "param" and instruction.name.startswith("st"):
            raise Fault(f"a store to parameters: {instruction.text}")

    def _value(self, operand: str, width: int, registers: dict[str, Term]) -> Term:
        found = registers.get(operand)
        if found is not None:
            if found.width == width:
                return found
            if found.width < width:
                raise Unknown(f"proof: {operand} has {found.width} bits where {width} are needed")
            return t.part(found, 0, width)
        found = self._constants.get((operand, width))
        if found is None:
            if operand.startswith("{"):
                return t.join(registers[name.strip()] for name in operand.strip("{} ").split(","))
            found = self._constants[operand, width] = const(self._number(operand), width)
        return found

    def _number(self, operand: str) -> int:
        if operand in self.symbols:
            return self.symbols[operand]
        if operand[:2] in ("0f", "0d", "0F", "0D"):
            return int(operand[2:], 16)
        try:
            return int(operand, 0)
        except ValueError:
            raise Unknown(f"proof: the operand {operand} is unknown to the prover, or not set before its use") from None

    def _set(self, operand: str, value: Term, here: _State, guard: Term) -> None:
        if operand.startswith("{"):
            names = [name.strip() for name in operand.strip("{} ").split(",")]
            width = value.width // len(names)
            for place, name in enumerate(names):
                if name != "_":  # The PTX of a place that nothing needs.
                    self._set(name, t.part(value, place * width, width), here, guard)
            return
        if value.width != self.kernel.width(operand):
            raise Unknown(f"proof: a result of {value.width} bits in {operand}")
        here.registers[operand] = value if guard.constant else t.ite(guard, value, here.registers[operand])


def _merged(one: _State, other: _State) -> _State:
    shared = 0
    while shared < min(len(one.path), len(other.path)) and one.path[shared] is other.path[shared]:
        shared += 1
    mine, yours = t.conj(*one.path[shared:]), t.conj(*other.path[shared:])
    path = one.path[:shared]
    either = t.bitwise("or", mine, yours)
    if not t.is_ones(either):
        path = (*path, either)
    registers = dict(other.registers)
    for name, value in one.registers.items():
        was = registers.get(name)
        registers[name] = value if was is None or was is value else t.ite(mine, value, was)
    return _State(one.at, registers, path)
