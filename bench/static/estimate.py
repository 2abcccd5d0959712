# SPDX-License-Identifier: Apache-2.0
"""An estimate of the speed of a call from the machine code of its kernels. No GPU has confirmed it.

The time of a call is the sum over its launches, and `FURTHER_LAUNCH` for each after the first. The time of a launch is
the longer one of two:

* **memory**: all bytes that travel, those that strides skip included, at the speed of a copy; what an earlier launch of
  the call left in the L2 cache does not travel;
* **threads**: an SM has as many blocks as registers and shared memory allow. Each block waits for its rounds of loads,
  its barriers, and its own results from one instruction to the next; it needs the SM's busiest unit, which others may
  need too; and it makes room for the next block. Between barriers a block moves as one, without barriers each warp
  moves alone. Mean value analysis gives the mean time in the queue for the unit. A round that was asked for `AHEAD`
  instructions before it is needed, as that of the next turn of a loop, passes while the thread has or awaits the unit.

A round of loads takes `IDLE` where memory is idle, and as much more under load that `GPU.in_flight` bytes have to be
under way in every SM to reach the speed of a copy. A look at what all threads share, such as a scale, takes `IDLE`.

As a check: of a loop over single int8 elements, with 2 KiB under way, 25 % of a copy was published for an H200
(NVIDIA/cccl issue 2086); this model gives 16 %.

The share is the time of a copy of the bytes that the call must read and write once, over this time. Left out: conflicts
in shared memory, the power limit, the speed of the L2 cache, and clusters of blocks.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bench.cubin import CubinKernel
from bench.static.calls import Call, Pass
from bench.static.kernels import Measured, capability
from bench.static.sass import Instruction
from gpucast.kernel.kernel import Kernel


@dataclass(frozen=True)
class GPU:
    """A GPU of the estimate."""

    name: str
    sms: int
    #: GHz while every SM works.
    clock: float
    #: TB/s, read and written together: the speed of a copy.
    bandwidth: float
    #: Bytes that the loads of an SM have under way at that speed.
    in_flight: int
    #: Lanes per clock and SM for float32 and float64 arithmetic.
    fma: int
    fp64: int
    #: Bytes of shared memory of an SM.
    shared: int
    #: Bytes that the L2 cache keeps from one launch to the next: four fifths of what NVIDIA names.
    l2: int


#: By compute capability. Bandwidths: the quickest published element-wise kernels on H200 (NVIDIA/cccl issue 2396) and
#: B200 (7391), 88 and 92 % of the peak; for A100 the same share of its peak. Bytes in flight: what CUB's transform is
#: tuned to on the three. Units: NVIDIA's descriptions of A100 and H100; B200 is taken to be as H100 is.
GPUS = {
    80: GPU("A100", 108, 1.41, 1.80, 16 << 10, 64, 32, 164 << 10, 32 << 20),
    90: GPU("H200", 132, 1.83, 4.20, 48 << 10, 128, 64, 228 << 10, 40 << 20),
    100: GPU("B200", 148, 1.85, 7.09, 64 << 10, 128, 64, 228 << 10, 100 << 20),
}
#: Lanes per clock and SM, alike on all: all instructions; integers; their products; conversions; memory, by words.
LANES = {"issue": 128, "alu": 64, "imad": 64, "xu": 16, "lsu": 32}
#: The share of its peak that a unit reaches: NVIDIA's profiler calls it the limit from there on.
ATTAINABLE = 0.8
#: Seconds, all assumed: a load while memory is idle; a barrier with the access to shared memory after it; between a
#: block and the one that takes its place; one more launch.
IDLE, BARRIER, TURNOVER, FURTHER_LAUNCH = 6e-7, 1e-7, 2e-7, 3e-6

#: Clocks from an instruction to one that uses its result, near what is published of Volta to Hopper: most of them;
#: those of the unit `xu`; DOUBLE; from shared memory or another lane.
_LATENCY = {"": 4, "xu": 18, "fp64": 8, "shared": 29, "lane": 23}

_XU = {"F2F", "F2I", "I2F", "FRND", "MUFU", "FLO", "POPC", "BREV"}
_FMA = {"FFMA", "FADD", "FMUL", "HFMA2", "HADD2", "HMUL2", "FFMA2", "FADD2", "FMUL2"}
_FP64 = {"DADD", "DMUL", "DFMA", "DSETP"}
#: What no unit is busy with: control, and registers of the machine; likewise the datapath of a whole warp.
_NO_UNIT = {
    *("BRA", "EXIT", "BSSY", "BSYNC", "BREAK", "BAR", "NOP", "WARPSYNC", "YIELD", "DEPBAR", "MEMBAR", "PMTRIG"),
    *("LDC", "LDCU", "S2R", "S2UR", "CS2R", "R2UR"),
}
#: Registers of an SM, and the number of which a warp takes a multiple; threads and blocks of an SM; bytes of shared
#: memory that every block takes beside its own.
_REGISTERS, _REGISTER_UNIT, _THREADS, _BLOCKS, _BLOCK_SHARED, _WARP = 65536, 256, 2048, 32, 1024, 32
#: A round of loads is of data if it has this share of the largest one's bytes.
_DATA = 8
#: Instructions between a load and the first use of what it brings.
AHEAD = 64
_REGISTER = re.compile(r"\bR(\d+)")
#: Loads to shared memory, what waits for them, and what stands for them among the registers.
_COPY, _COPIED, _COPIES = "LDGSTS", "DEPBAR", -1
#: Ends a group of copies.
_GROUP = "LDGDEPBAR"
#: Registers and predicates, those of a warp included.
_NAMES = re.compile(r"\bU?[RP]\d+")


@dataclass(frozen=True)
class Timed:
    """The estimate of one pass."""

    of: Measured
    seconds: float
    #: "memory", "waiting" or the busiest unit.
    bound: str
    #: Resident threads of an SM, and the bytes that their loads have under way.
    threads: int
    in_flight: int


@dataclass(frozen=True)
class Estimate:
    """The estimate of a call."""

    call: Call
    passes: tuple[Timed, ...]
    #: Of the speed of a copy of what the call must read and write once.
    share: float

    @property
    def main(self) -> Timed:
        """The pass that takes longest."""
        return max(self.passes, key=lambda one: one.seconds)


def estimate(call: Call, passes: Sequence[Measured]) -> Estimate:
    """On the GPU of the architecture that the passes were measured for."""
    gpu = GPUS[passes[0].capability]
    timed = tuple(map(_timed, passes))
    seconds = sum(one.seconds for one in timed) + (len(timed) - 1) * FURTHER_LAUNCH
    return Estimate(call, timed, call.needed / (gpu.bandwidth * 1e12) / seconds)


def _timed(of: Measured) -> Timed:
    gpu, kernel = GPUS[of.capability], of.of.kernel
    speed, clocks = gpu.bandwidth * 1e12, gpu.clock * 1e9
    executed = list(of.executed)
    lanes = {**LANES, "fma": gpu.fma, "fp64": gpu.fp64}
    units = {unit: count / lanes[unit] / clocks / ATTAINABLE for unit, count in work(executed).items()}
    unit = max(units, key=lambda one: units[one])
    resident, each = resident_blocks(of), loads(executed)
    most = max((one.nbytes for one in each), default=0)
    data = [one for one in each if _DATA * one.nbytes >= most]
    loaded, rounds = sum(one.nbytes for one in each), sum(not one.ahead for one in data)
    # Of several rounds that are under way at a time each has a part of the time of one.
    meanwhile = sum(1 / one.deep for one in data if one.ahead)
    # What all threads look at, such as a scale, is in a cache.
    looks = len(each) - len(data) + of.of.rounds
    # What moves as one: a block with barriers, in a loop if there is one, else a warp.
    waits = any(one.base == "BAR" for one in of.repeated or of.path)
    team = kernel.threads if waits else min(_WARP, kernel.threads)
    teams = max(1, min(resident * kernel.threads, -(-of.of.threads // gpu.sms)) // team)
    travel = of.of.read + of.of.written - _cached(of.of, gpu)
    # A round while memory works at full speed: by Little's law, of a copy, of which half is read.
    full = gpu.in_flight * gpu.sms / (speed / 2)
    service = units[unit] * team
    delay = of.barriers * BARRIER + looks * IDLE + TURNOVER * (kernel.threads < of.of.threads)
    delay += max(0.0, alone(executed) / clocks - service)
    low, high = 0.0, 1.0
    # The share of memory's speed that the threads ask for, with the time that a load takes at this share.
    for _ in range(30):
        middle = (low + high) / 2
        trip = IDLE + middle * (full - IDLE)
        rate = _rate(rounds * trip + delay, service, teams, meanwhile * trip)
        asked = rate * team * gpu.sms / of.of.threads * travel / speed
        low, high = (middle, high) if asked > middle else (low, middle)
    memory, threads = travel / speed, travel / speed / max(low, 1e-9) if travel else 0.0
    seconds = max(memory, threads, rounds * IDLE + delay + service)
    bound = "memory" if low > 0.99 else "waiting"
    if low <= 0.99 and units[unit] * of.of.threads / gpu.sms > 0.9 * seconds:
        bound = unit
    tile = of.of.load * (of.of.read > 0)
    in_flight = teams * team * min(loaded, tile or loaded) / max(len(data), 1)
    if len(data) > rounds and any(one.base == _COPY for one in of.path):
        in_flight = teams * team * max(one.nbytes * one.deep for one in data)
    elif len(data) > rounds:
        # The next turn's loads are under way beside those that are waited for.
        in_flight = teams * team * 2 * max(one.nbytes for one in data if one.ahead)
    return Timed(of, seconds, bound, resident * kernel.threads, round(in_flight))


def _cached(of: Pass, gpu: GPU) -> int:
    """The bytes that the L2 cache still has. From the begin of an array that is larger than the cache it has nothing:
    what comes last pushes that out."""
    return min(of.again, gpu.l2) if of.reverse or of.again <= gpu.l2 else 0


def _rate(think: float, service: float, customers: int, meanwhile: float = 0.0) -> float:
    """The customers a second that one server has where each of some comes again after a time, and not before another
    one since its last visit began: mean value analysis."""
    queue = rate = 0.0
    for number in range(1, customers + 1):
        answer = service * (1 + queue)
        # No more than it can serve, which loads that pass meanwhile would hide.
        rate = min(number / (think + max(answer, meanwhile)), 1 / service)
        queue = rate * answer
    return rate


def work(path: Iterable[Instruction]) -> dict[str, int]:
    """Lanes of every unit that one thread uses."""
    found: defaultdict[str, int] = defaultdict(int)
    for one in path:
        found["issue"] += 1
        base = one.base
        if one.access is not None or base == "SHFL":
            found["lsu"] += 1 if one.access is None else max(1, one.access.width // 4)
        elif base.startswith("U") or base in _NO_UNIT:
            continue
        elif base.startswith(("IMAD", "IDP")):
            found["imad"] += 1
            found["fma"] += 1
        else:
            found["xu" if base in _XU else "fma" if base in _FMA else "fp64" if base in _FP64 else "alu"] += 1
    return dict(found)


def alone(path: Iterable[Instruction]) -> int:
    """Clocks in which a warp that is alone issues its instructions, in order, each as soon as its operands are there.
    Waiting for global memory and for barriers is left out."""
    ready: defaultdict[str, int] = defaultdict(int)
    clock = 0
    for one in path:
        names = [name for operand in one.operands for name in _NAMES.findall(operand)]
        clock = max([clock + 1, *(ready[name] for name in names)])
        access = one.access
        if not names or (access is not None and access.store):
            continue
        kind = "xu" if one.base in _XU else "fp64" if one.base in _FP64 else "lane" if one.base == "SHFL" else ""
        if access is not None and access.space == "shared":
            kind = "shared"
        if access is None or access.space == "shared":
            results = set(names[:1]) | one.sets()
            if access is not None and access.width > 4:
                first = int(names[0].lstrip("UR") or 0)
                results |= {f"R{first + more}" for more in range(access.width // 4)}
            ready |= dict.fromkeys(results, clock + _LATENCY[kind])
    return clock


class Round(NamedTuple):
    """Loads of a thread from global memory that it waits for together."""

    nbytes: int
    #: Whether it asked for them `AHEAD` instructions or more before.
    ahead: bool = False
    #: How many rounds are under way while it waits for this one.
    deep: int = 1


def loads(path: Iterable[Instruction]) -> list[Round]:
    """The rounds of a thread: it waits for all that is under way where it first uses some of it. What goes to shared
    memory by itself it waits for at an instruction that says so, where it may leave the last groups of copies alone."""
    rounds, under_way, last = list[Round](), 0, 0
    waiting = set[int]()
    # Of groups of copies that are not waited for: their bytes, and the number of the last instruction.
    groups = list[tuple[int, int]]()
    for number, one in enumerate(path):
        access = one.access
        load, copies = access is not None and access.space == "global" and not access.store, one.base == _COPY
        results = _results(one) if load and not copies else ()
        used = {int(name) for operand in one.operands[len(results) :] for name in _REGISTER.findall(operand)}
        if one.base == _GROUP and under_way and _COPIES in waiting:
            groups.append((under_way, last))
            under_way = 0
            waiting.clear()
        if one.base == _COPIED:
            used.add(_COPIES)
            left = int(one.operands[1], 0) if len(one.operands) > 1 else 0
            while len(groups) > left:
                nbytes, asked = groups.pop(0)
                rounds.append(Round(nbytes, number - asked >= AHEAD, 1 + len(groups)))
        if used & waiting:
            rounds.append(Round(under_way, number - last >= AHEAD))
            under_way = 0
            waiting.clear()
        if load and access is not None:
            under_way += access.width
            last = number
            if copies:
                waiting.add(_COPIES)
            each = max(1, access.width // 4 // max(1, len(results)))
            waiting.update(first + more for first in results for more in range(each))
    return [*rounds, *(Round(nbytes) for nbytes, _ in groups), *([Round(under_way)] if under_way else [])]


def _results(load: Instruction) -> list[int]:
    """The first registers of what a load brings: those before its address. One of 32 bytes brings two halves."""
    before = itertools.takewhile(lambda operand: "[" not in operand, load.operands)
    return [int(match[1]) for match in map(_REGISTER.match, before) if match]


def resident_blocks(of: Measured) -> int:
    """Blocks of an SM at a time, as registers, shared memory and the counts of threads and blocks allow."""
    return _resident_blocks(of.of.kernel, of.facts, GPUS[of.capability])


def _resident_blocks(kernel: Kernel, facts: CubinKernel, gpu: GPU) -> int:
    warps = -(-kernel.threads // _WARP)
    per_warp = -(-facts.registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    return min(
        _REGISTERS // per_warp // warps,
        _THREADS // (warps * _WARP),
        gpu.shared // (facts.shared + _BLOCK_SHARED),
        _BLOCKS,
    )


def on_gpu(of: Pass, facts: CubinKernel, arch: str) -> Pass:
    """A pass as the GPU of an architecture runs it: of blocks that stay no more than it holds at a time."""
    gpu = GPUS[capability(arch)]
    first = of.kernel.stays_from
    stays = first is not None and capability(arch) >= first
    blocks = min(of.blocks, gpu.sms * _resident_blocks(of.kernel, facts, gpu)) if stays else of.blocks
    each = of.blocks / blocks
    return replace(of, blocks=blocks, load=of.load * each, store=of.store * each, beside=of.beside * each)
