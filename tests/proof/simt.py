# SPDX-License-Identifier: Apache-2.0
"""Executes PTX on known numbers, all threads of a block together, and stops at what a GPU forbids.

`machine` executes one thread on unknown numbers; this one finds what only whole blocks on real arrays show: accesses in
the wrong memory, misaligned or outside of the arrays, barriers and shuffles that not all threads reach, races on shared
memory, and registers and memory that are read before they are written. Both take the meaning of an instruction from
`instructions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from tests.proof import terms as t
from tests.proof.instructions import OPERATIONS, RUNNING
from tests.proof.machine import Fault, Unknown
from tests.proof.ptx import Instruction, Kernel
from tests.proof.registers import Registers, program
from tests.proof.spaces import LOCAL_WINDOW, SHARED, SHARED_WINDOW, WINDOW, Bytes, Global, NDArray, Shared
from tests.proof.terms import Term, const
from tests.proof.warps import LANES, REDUCTIONS, source_lanes

_ACCESS = re.compile(r"(ld|st)(?:\.(param|global|shared|local))?(\.nc)?(?:\.v([248]))?\.([bsuf])(8|16|32|64)")
_MOVE = re.compile(r"mov\.(?:[bsuf](\d+)|pred)")
_CVTA = re.compile(r"cvta(\.to)?\.(shared|local|global|param)\.u64")
_ATOMIC = re.compile(r"(red|atom)\.global\.(max|min|add|or|and|exch|inc)\.([bsu])(32|64)")
_SHUFFLE = re.compile(r"shfl\.sync\.(bfly|up|down|idx)\.b32")
_VOTE = re.compile(r"vote\.sync\.(ballot\.b32|any\.pred|all\.pred)")
_COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global")
_COPIES_WAIT = re.compile(r"cp\.async\.(?:wait_all|wait_group|commit_group)")
_WARP_REDUCTION = re.compile(r"redux\.sync\.(max|min|add|or|and)\.([bsu])32")
#: Where threads wait for others.
_WAITS = re.compile(r"bar\.sync|barrier\.sync|(?:shfl|vote|redux)\.sync\..*")
_WINDOWS = {"shared": SHARED_WINDOW - SHARED, "local": LOCAL_WINDOW}
_FENCES = ("membar.gl", "fence.acq_rel.gpu")
_NOTHING = ("pmevent",)
_RUNS, _WAITING, _ENDED = range(3)
#: The most instructions of a block, those of threads that run together counted once.
_LIMIT = 5_000_000


class Step(NamedTuple):
    """An instruction that is ready to run: on the numbers of some threads."""

    instruction: Instruction
    kind: str
    run: Callable[[NDArray], None]
    #: The register of the guard, and what it must be; the instruction to which a branch leads.
    guard: tuple[int, int] | None
    target: int


class Block(Registers):
    """A kernel that is ready to run, as often as wanted, in blocks of so many threads: one block after another."""

    def __init__(self, kernel: Kernel, threads: int) -> None:
        super().__init__(kernel, threads)
        #: Functions that read the mask of an instruction for a warp.
        self._masks: dict[int, Callable[[NDArray], NDArray]] = {}
        self._tables = {name: np.frombuffer(table, np.uint8).copy() for name, table in kernel.tables.items()}
        for name, table in self._tables.items():
            self.symbols[name] = table.ctypes.data
        self.memory: Global | None = None
        self._steps = [self._step(instruction) for instruction in kernel.body]
        self.threads = np.arange(threads)

    def run(self, blocks: int, params: Sequence[bytes], arrays: Sequence[range]) -> None:
        """A launch. `params` holds the bytes of each parameter; `arrays` are all that are on the device."""
        self.give(params)
        tables = [range(one.ctypes.data, one.ctypes.data + one.nbytes) for one in self._tables.values()]
        self.memory = Global(arrays, tables) if arrays or tables else None
        with np.errstate(all="ignore"):
            for block in range(blocks):
                self._run(block, blocks)

    # ---- threads ----

    def _run(self, block: int, blocks: int) -> None:
        self.block = block
        self.shared = Shared(self.sizes[0])
        self.local = Bytes("local", self.sizes[1], 0, self.count)
        self.clear((self.threads, self.count, block, blocks, self.threads % LANES))
        self.at = np.zeros(self.count, np.int64)
        self.state = np.full(self.count, _RUNS)
        #: Where each thread last wrote to global memory since its last fence; 0 for nowhere.
        self.unfenced = np.zeros(self.count, np.uint64)
        steps = 0
        while True:
            running = np.flatnonzero(self.state == _RUNS)
            if len(running) == 0:
                if (self.state == _ENDED).all():
                    self.shared.end()
                    return
                self._release()
                continue
            places = self.at[running]
            # In the order of the text, so that threads wait where they meet.
            at = places.min()
            rest = places[places != at]
            steps += self._advance(running[places == at], int(at), int(rest.min()) if len(rest) else len(self._steps))
            if steps > _LIMIT:
                raise Fault("a block does not end")

    def _advance(self, group: NDArray, at: int, limit: int) -> int:
        """Run some threads until they part, wait, end, or come to others."""
        done = 0
        while at < limit and done < _LIMIT:
            step = self._steps[at]
            done += 1
            taking = group
            if step.guard is not None:
                slot, wanted = step.guard
                if not self.is_known(slot, group):
                    raise self._fault(step, group, Fault("a guard that is not set"))
                holds = self.values[slot, group] == wanted
                if not holds.all():
                    taking = group[holds]
            if step.kind == "run":
                if len(taking):
                    try:
                        step.run(taking)
                    except Fault as fault:
                        raise self._fault(step, taking, fault) from None
                at += 1
                continue
            if len(taking) == 0:
                at += 1
                continue
            if step.kind == "branch" and len(taking) == len(group):
                at = step.target
                continue
            self.at[group] = at + 1
            self.at[taking] = step.target if step.kind == "branch" else at
            if step.kind != "branch":
                self.state[taking] = _ENDED if step.kind == "end" else _WAITING
            return done
        self.at[group] = at
        return done

    def _release(self) -> None:
        """Let threads go on whose partners are all there."""
        waiting = np.flatnonzero(self.state == _WAITING)
        for at in np.unique(self.at[waiting]):
            group = waiting[self.at[waiting] == at]
            step = self._steps[at]
            if step.kind == "barrier":
                ready = len(group) == self.count
            else:
                ready = self._complete(step, group)
            if ready:
                try:
                    step.run(group)
                except Fault as fault:
                    raise self._fault(step, group, fault) from None
                self.at[group] += 1
                self.state[group] = _RUNS
                return
        step = self._steps[int(self.at[waiting].min())]
        what = "a barrier" if step.kind == "barrier" else "a shuffle"
        raise self._fault(step, waiting, Fault(f"{what} that not all threads reach"))

    def _complete(self, step: Step, group: NDArray) -> bool:
        """Whether all lanes of each mask are there, and name the same mask."""
        masks = self._mask(step, group).astype(np.int64)
        if not (masks >> group % LANES & 1).all():
            raise self._fault(step, group, Fault("a lane outside of its own mask"))
        there = np.zeros((-(-self.count // LANES), LANES), np.int64)
        there[group // LANES, group % LANES] = masks
        named = masks[:, None] >> np.arange(LANES) & 1
        return bool(((there[group // LANES] == masks[:, None]) | (named == 0)).all())

    def _fault(self, step: Step, group: NDArray, fault: Fault) -> Fault:
        lanes = f"thread {int(group[0])}" if len(group) else "no thread"
        return Fault(f"{self.kernel.name}, block {self.block}, {lanes}: {step.instruction.text}: {fault}")

    # ---- reading the kernel ----

    def _step(self, instruction: Instruction) -> Step:
        name, operands = instruction.name, instruction.operands
        guard = None if instruction.guard is None else (self.slot(instruction.guard[0]), int(not instruction.guard[1]))
        if name in ("bra", "bra.uni"):
            return Step(instruction, "branch", _nothing, guard, self.kernel.labels[operands[0]])
        if name in ("ret", "exit"):
            return Step(instruction, "end", _nothing, guard, 0)
        if _WAITS.fullmatch(name):
            return Step(instruction, *self._waiting(instruction), guard, 0)
        return Step(instruction, "run", self._runs(instruction), guard, 0)

    def _runs(self, instruction: Instruction) -> Callable[[NDArray], None]:
        """What an instruction does by each thread alone."""
        name, operands = instruction.name, instruction.operands
        operation = OPERATIONS.get(name) or RUNNING.get(name)
        inputs: dict[Term, int] = {}
        if operation is not None and len(operands) == len(operation[0]) + 1:
            terms = [self.term(one, width, inputs) for one, width in zip(operands[1:], operation[0], strict=True)]
            try:
                return self._computes(operands[0], operation[1](*terms), inputs)
            except (TypeError, ZeroDivisionError) as error:
                raise Unknown(f"proof: {instruction.text}: {error}") from error
        if move := _MOVE.fullmatch(name):
            return self._computes(operands[0], self.term(operands[1], int(move[1] or 1), inputs), inputs)
        if cvta := _CVTA.fullmatch(name):
            base = const(_WINDOWS.get(cvta[2], 0), 64)
            term = self.term(operands[1], 64, inputs)
            return self._computes(operands[0], t.sub(term, base) if cvta[1] else t.add(term, base), inputs)
        if access := _ACCESS.fullmatch(name):
            return self._accesses(instruction, access)
        if name == "prefetch.global.L2":
            # What it asks for must be in an array, as for a load.
            address = self.address(operands[0], 64)

            def prefetch(group: NDArray) -> None:
                self._global().load(address(group), 1, 1, False)

            return prefetch
        if atomic := _ATOMIC.fullmatch(name):
            return self._atomic(instruction, atomic)
        if _COPY.fullmatch(name):
            return self._copy(instruction)
        if _COPIES_WAIT.fullmatch(name):
            return self._wait_for_copies(instruction)
        if name in _FENCES:
            return self._fence
        if name in _NOTHING:
            return _nothing
        raise Unknown(f"proof: the instruction {name} is unknown: {instruction.text}")

    def _global(self) -> Global:
        if self.memory is None:
            raise Fault("an access to global memory, where no array is")
        return self.memory

    # ---- what steps do ----

    def _fence(self, group: NDArray) -> None:
        self.unfenced[group] = 0

    def _computes(self, target: str, value: Term, inputs: dict[Term, int]) -> Callable[[NDArray], None]:
        """Set a register, or several that share the bits of a value."""
        names = [name.strip() for name in target.strip("{} ").split(",")]
        width = value.width // len(names)
        parts = [(name, t.part(value, number * width, width)) for number, name in enumerate(names) if name != "_"]
        made = []
        for name, part in parts:
            if part.width != self.width(name):
                raise Unknown(f"proof: a result of {part.width} bits in {name}")
            value_of = program(part)
            made.append((self.slot(name), value_of, [inputs[term] for _, term in value_of.variables]))

        def compute(group: NDArray) -> None:
            found = [(slot, one.of(*[self.read(place, group) for place in slots])) for slot, one, slots in made]
            if len(found) > 1:
                # What is written first may be what the others read.
                found = [(slot, values.copy()) for slot, values in found]
            for slot, values in found:
                self.write(slot, group, values)

        return compute

    def _accesses(self, instruction: Instruction, access: re.Match[str]) -> Callable[[NDArray], None]:
        kind, space, constant, count, sign, bits = access.groups()
        size, many = int(bits) // 8, int(count or 1)
        load, (one, other) = kind == "ld", instruction.operands
        address = self.address(other if load else one, 64 if space in (None, "global") else 32)
        listed = (one if load else other).strip("{} ")
        names = [name.strip() for name in listed.split(",")] if many > 1 else [listed]
        run: Callable[[NDArray, str, NDArray], None]
        if load:
            targets = [None if name == "_" else (self.slot(name), self.width(name)) for name in names]
            run = partial(self._load, targets=targets, size=size, signed=sign == "s", constant=bool(constant))
        else:
            run = partial(self._store, values=[self.reader(name, int(bits)) for name in names], size=size)

        def accessed(group: NDArray) -> None:
            at = address(group)
            bad = at % np.uint64(size * many) != 0
            if bad.any():
                raise Fault(f"{int(at[bad.argmax()]):#x} is misaligned for {size * many} bytes")
            if space is not None:
                run(group, space, at)
                return
            # A generic address: of global memory where it is in no window.
            for window, begin in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
                inside = (at >= np.uint64(begin)) & (at < np.uint64(begin + WINDOW))
                if inside.any():
                    run(group[inside], window, at[inside] - np.uint64(_WINDOWS[window]))
                    group, at = group[~inside], at[~inside]
            if len(group):
                run(group, "global", at)

        return accessed

    def _load(
        self,
        group: NDArray,
        space: str,
        at: NDArray,
        targets: Sequence[tuple[int, int] | None],
        size: int,
        signed: bool,
        constant: bool,
    ) -> None:
        many = len(targets)
        if space == "global":
            words = self._global().load(at, size, many, constant)
            self._global().check_blocks(at, size * many, self.block * self.count, self.count)
        else:
            if space == "shared":
                data = self.shared.load_by(group, at, size * many, many > 1)
            elif space == "local":
                data = self.local.load(at, size * many, group)
            else:
                data = self.params.load(at, size * many, np.zeros_like(group))
            words = list(np.ascontiguousarray(data).view(f"u{size}").T)
        for target, word in zip(targets, words, strict=True):
            if target is not None:
                slot, width = target
                value = word.astype(np.uint64)
                if signed:
                    value = word.view(f"i{size}").astype(np.int64).view(np.uint64)
                    value &= np.uint64((1 << width) - 1)
                self.write(slot, group, value)

    def _store(
        self, group: NDArray, space: str, at: NDArray, values: Sequence[Callable[[NDArray], NDArray]], size: int
    ) -> None:
        given = [read(group) for read in values]
        if space == "global":
            self._global().store(self.block * self.count + group, at, given, size)
            self.unfenced[group] = at
            return
        if space == "param":
            raise Fault("a store to parameters")
        words = np.stack([value.astype(f"u{size}") for value in given], 1)
        data = np.ascontiguousarray(words).view(np.uint8).reshape(len(group), -1)
        if space == "shared":
            self.shared.store_by(group, at, data)
        else:
            self.local.store(at, data, group)

    def _atomic(self, instruction: Instruction, atomic: re.Match[str]) -> Callable[[NDArray], None]:
        kind, op, sign, bits = atomic.groups()
        *target, where, operand = instruction.operands
        address = self.address(where, 64)
        read, size = self.reader(operand, int(bits)), int(bits) // 8
        function = partial(REDUCTIONS[op], f"{'i' if sign == 's' else 'u'}{size}")
        slot = self.slot(target[0]) if kind == "atom" and target[0] != "_" else None

        def run(group: NDArray) -> None:
            at = address(group)
            if (at % np.uint64(size)).any():
                raise Fault("a misaligned atomic operation")
            before = self.unfenced[group]
            # With a result, a thread decides by what others have done: these must see what it wrote before.
            if kind == "atom" and ((before != 0) & (before != at)).any():
                raise Fault("an atomic operation whose thread wrote elsewhere, without a fence between the two")
            self.unfenced[group] = at
            found = self._global().change(at, function, read(group), size)
            if slot is not None:
                self.write(slot, group, found)

        return run

    def _copy(self, instruction: Instruction) -> Callable[[NDArray], None]:
        """From global memory to shared memory, while the thread goes on."""
        to, source, *sizes = instruction.operands
        if len(sizes) != 1 or int(sizes[0]) not in ((4, 8, 16) if ".ca." in instruction.name else (16,)):
            raise Unknown(f"proof: a copy of other sizes is unknown: {instruction.text}")
        size = int(sizes[0])
        target, origin = self.address(to, 32), self.address(source, 64)

        def copy(group: NDArray) -> None:
            at, begin = target(group), origin(group)
            for addresses in (at, begin):
                bad = addresses % np.uint64(size) != 0
                if bad.any():
                    raise Fault(f"{int(addresses[bad.argmax()]):#x} is misaligned for {size} bytes")
            words = self._global().load(begin, 4, size // 4, False)
            self._global().check_blocks(begin, size, self.block * self.count, self.count)
            data = np.ascontiguousarray(np.stack(words, 1)).view(np.uint8).reshape(len(group), size)
            self.shared.begin_copy(group, at, data)

        return copy

    def _wait_for_copies(self, instruction: Instruction) -> Callable[[NDArray], None]:
        name, operands = instruction.name, instruction.operands
        if name == "cp.async.commit_group":
            return lambda group: self.shared.commit(group)  # noqa: PLW0108 - each block has a memory of its own
        pending = int(operands[0]) if name == "cp.async.wait_group" else -1
        return lambda group: self.shared.finish(group, pending)

    # ---- what threads do together ----

    def _waiting(self, instruction: Instruction) -> tuple[str, Callable[[NDArray], None]]:
        name, operands = instruction.name, instruction.operands
        if name in ("bar.sync", "barrier.sync"):
            if len(operands) != 1:
                raise Unknown(f"proof: a barrier of some threads is unknown: {instruction.text}")
            return "barrier", lambda group: self.shared.barrier()
        self._masks[id(instruction)] = self.reader(operands[-1], 32)
        if shuffle := _SHUFFLE.fullmatch(name):
            return "warp", self._shuffle(operands, shuffle[1])
        if vote := _VOTE.fullmatch(name):
            return "warp", self._vote(operands, vote[1])
        if reduction := _WARP_REDUCTION.fullmatch(name):
            return "warp", self._reduction(operands, *reduction.groups())
        raise Unknown(f"proof: the instruction {name} is unknown: {instruction.text}")

    def _mask(self, step: Step, group: NDArray) -> NDArray:
        return self._masks[id(step.instruction)](group)

    def _shuffle(self, operands: Sequence[str], mode: str) -> Callable[[NDArray], None]:
        register, _, inside = operands[0].partition("|")
        slot, flag = self.slot(register), self.slot(inside) if inside else None
        given, by, last, masks = (self.reader(one, 32) for one in operands[1:5])

        def run(group: NDArray) -> None:
            lane = group % LANES
            source, holds = source_lanes(mode, lane, by(group), last(group), masks(group))
            value = given(group)
            every = np.zeros(self.count + LANES, np.uint64)
            every[group] = value
            self.write(slot, group, every[group - lane + source])
            if flag is not None:
                self.write(flag, group, holds)

        return run

    def _vote(self, operands: Sequence[str], mode: str) -> Callable[[NDArray], None]:
        slot, given, masks = self.slot(operands[0]), self.reader(operands[1], 1), self.reader(operands[2], 32)

        def run(group: NDArray) -> None:
            bits = np.zeros(self.count // LANES + 1, np.int64)
            np.bitwise_or.at(bits, group // LANES, given(group).astype(np.int64) << group % LANES)
            found, mask = bits[group // LANES], masks(group).astype(np.int64)
            result = {"ballot.b32": found, "any.pred": found != 0, "all.pred": (found & mask) == mask}[mode]
            self.write(slot, group, result)

        return run

    def _reduction(self, operands: Sequence[str], op: str, sign: str) -> Callable[[NDArray], None]:
        slot, given, function = self.slot(operands[0]), self.reader(operands[1], 32), REDUCTIONS[op]

        def run(group: NDArray) -> None:
            values = given(group)
            for warp in np.unique(group // LANES):
                members = group // LANES == warp
                total = values[members][0]
                for value in values[members][1:]:
                    total = function(f"{'i' if sign == 's' else 'u'}4", total, value)
                self.write(slot, group[members], total)

        return run


def _nothing(group: NDArray) -> None:
    pass
