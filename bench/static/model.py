# SPDX-License-Identifier: Apache-2.0
"""An estimate of how close to the speed of a copy a kernel can come, from its machine code alone.

The work of one thread for a full tile is counted for each unit of the machine, and divided by what that unit does
while memory moves the thread's bytes at the speed of a copy. More limits are not units of an SM: how many bytes the
resident threads have asked for at a time (Little's law), how many sectors of 32 bytes travel between an SM and its L2
cache, and how many blocks begin.

It is a model, and an upper bound: it knows nothing of the power limit, of conflicts in shared memory, or of how the
work of warps falls together. Kernels of others, written as their sources describe them, were estimated beside what was
published of them, as shares of a copy's speed (published, estimated):

    int8, a loop of single elements    H200   NVIDIA/cccl 2086    25 %    18 %
    float64                            H200   NVIDIA/cccl 2396   100 %   100 %
    float32 to float16, PyTorch        H100   pytorch 137053     100 %   100 %
    float32, CUB's transform           B200   NVIDIA/cccl 9481   100 %   100 %
    float16, CUB's transform           B200   NVIDIA/cccl 9210    96 %   100 %
    float8e4m3fn with scales, Triton   H100   triton 11644        86 %   100 %   without Triton's addresses
    bfloat16, loaded in bulk           B200   NVIDIA/cccl 9481    74 %   100 %   without the wait for bulk copies
    bfloat16 to float32, PyTorch       A100   pytorch 195542      69 %   100 %   of which A100 is not said
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bench.static.kernels import StaticKernel
from bench.static.sass import Instruction


@dataclass(frozen=True)
class GPU:
    """A GPU of the estimate."""

    name: str
    sms: int
    #: GHz while every SM works.
    clock: float
    #: TB/s, read and written together, that good kernels reach in published results: the speed of a copy.
    bandwidth: float
    #: Lanes per clock and SM of units that differ between GPUs: float32 arithmetic, float64 arithmetic.
    fma: int
    fp64: int
    #: Bytes of shared memory of an SM.
    shared: int
    #: Bytes per clock between all SMs and the L2 cache.
    l2: int


#: By compute capability, such as 90 for sm_90 and sm_90a: of its GPUs the one whose memory is the quickest for its
#: units. Bandwidths: 87 to 92 % of the vendor's peak of 2.04, 4.8 and 7.67 TB/s, which is what the quickest published
#: element-wise kernels reach on H200 (NVIDIA/cccl issue 2396, 4.26) and B200 (NVIDIA/cccl issue 7391, 7.09); on A100 it
#: is the same share, without a published kernel of that speed. Clocks: what H200 runs at under load, taken for B200 too
#: within 1 %; the boost clock of A100. Units: NVIDIA's descriptions of the architectures. L2: 5120 bytes a clock is
#: NVIDIA's figure for A100, taken for a die of the others for want of a source.
GPUS = {
    80: GPU("A100", 108, 1.41, 1.80, 64, 32, 164 << 10, 5120),
    90: GPU("H200", 132, 1.83, 4.20, 128, 64, 228 << 10, 5120),
    100: GPU("B200", 148, 1.85, 7.09, 128, 64, 228 << 10, 10240),
}

#: Lanes per clock and SM, where all GPUs are alike. "issue": four warps of 32 threads. "alu": half of that, for
#: integers but for multiplication, logic, shifts, compares, selects, byte permutes, and conversions that work on pairs.
#: "imad": integer multiplication and what the compiler does by it, on half of the float32 unit. "xu": other
#: conversions, leading zeros. "lsu": words of four bytes to and from memory, shared memory included. Sources: NVIDIA's
#: table of arithmetic throughput and what its developer forum says of the pipes of Volta to Hopper. B200 is taken to be
#: as Hopper is, for want of a source.
LANES = {"issue": 128, "alu": 64, "imad": 64, "xu": 16, "lsu": 32}
#: Lines of 128 bytes that an SM's L1 cache looks up per clock, and blocks that a GPU begins per clock: what NVIDIA's
#: profiler and published launches of empty blocks show, without a figure of NVIDIA's.
LINES, BLOCKS_BEGUN = 1, 1
#: Nanoseconds from a load to its data while memory is busy, taken for all GPUs alike; the bytes in flight that CUB was
#: tuned to (16, 32, 48 and 64 KiB loaded per SM) are 1 to 4 times what it asks for.
LATENCY = 700
#: Nanoseconds between the last access of a block and the first of the block that takes its place, in which its threads
#: have asked for nothing: about 400 clocks of launch, arguments and index arithmetic. An assumption.
TURNOVER = 200
#: The share of its peak beyond which a unit no longer keeps up: NVIDIA's profiler calls a unit the limit from there on.
ATTAINABLE = 0.8

_XU = {"F2F", "F2I", "I2F", "FRND", "MUFU", "FLO", "POPC", "BREV"}
_FLOAT = {"FFMA", "FADD", "FMUL", "HFMA2", "HADD2", "HMUL2", "FFMA2", "FADD2", "FMUL2"}
_DOUBLE = {"DADD", "DMUL", "DFMA", "DSETP"}
_CONTROL = {"BRA", "EXIT", "BSSY", "BSYNC", "BREAK", "BAR", "NOP", "WARPSYNC", "YIELD", "DEPBAR", "MEMBAR", "PMTRIG"}
#: Constants and registers of the machine: from units that no cast keeps busy.
_SPECIAL = {"LDC", "LDCU", "S2R", "S2UR", "CS2R", "R2UR"}

#: Registers of an SM, and of which number a warp takes a multiple; threads and blocks of an SM; bytes of shared memory
#: that every block takes beside its own.
_REGISTERS, _REGISTER_UNIT, _THREADS, _BLOCKS, _BLOCK_SHARED = 65536, 256, 2048, 32, 1024
_WARP = 32
_SECTOR, _LINE = 32, 128
#: What is no unit of an SM.
_OUTSIDE = ("l2", "blocks")
_REGISTER = re.compile(r"\bR(\d+)")
_ADDRESS = re.compile(r"\[(.*?)(?:\+(-?0x[0-9a-f]+))?\]$")


@dataclass(frozen=True)
class Estimate:
    #: The share of the speed of a copy of as many bytes, 0 to 1.
    share: float
    #: What limits the speed: "memory", a unit, "l2", "blocks" or "latency".
    bound: str
    #: Unit -> the share of its time that it works at the speed of a copy; above 1 it cannot.
    use: dict[str, float]
    #: Resident threads of an SM, of at most 2048.
    threads: int
    #: Bytes that these have asked memory for at a time, and the bytes that the speed of a copy takes.
    in_flight: float
    needed: float

    @property
    def busiest(self) -> str:
        """The busiest unit of an SM."""
        return max(self.use, key=lambda unit: self.use[unit] if unit not in _OUTSIDE else 0.0)

    def __str__(self) -> str:
        """Such as "limited by lsu at 84 % of a copy"."""
        return f"limited by {self.bound} at {100 * self.share:.0f} % of a copy"


def estimate(kernel: StaticKernel, moved: float | None = None) -> Estimate:
    """On the GPU of the kernel's architecture. `moved`: bytes read and written per element, where they are not one
    source and one result."""
    gpu = GPUS[kernel.capability]
    lanes = {**LANES, "fma": gpu.fma, "fp64": gpu.fp64, "l2": gpu.l2 / gpu.sms, "l1 lines": LINES}
    lanes["blocks"] = BLOCKS_BEGUN / gpu.sms
    moved = kernel.moved if moved is None else moved
    # Seconds times 10^12 for all elements of a thread, if there were one SM with one unit.
    memory = moved * kernel.source.kernel.elements / gpu.bandwidth
    rate = gpu.sms * gpu.clock / 1000
    tile = kernel.source.kernel.elements * kernel.src_bits / 8
    done: dict[str, float] = {**work(kernel.executed, tile), "blocks": 1 / kernel.source.kernel.threads}
    use = {unit: count / (lanes[unit] * rate) / memory for unit, count in done.items()}
    threads = resident_threads(kernel)
    of_path, rounds = loaded(kernel.executed)
    read = min(of_path, tile)
    in_flight = threads * read / rounds if rounds else 0.0
    needed = gpu.bandwidth * 1e12 * LATENCY * 1e-9 / gpu.sms * min(1.0, read / (moved * kernel.source.kernel.elements))
    limits = {unit: ATTAINABLE / share for unit, share in use.items() if share}
    if rounds:
        # Threads that stay for the turns of a loop pass this once.
        waits = LATENCY * rounds
        limits["latency"] = in_flight / needed * waits / (waits + (0 if kernel.loop else TURNOVER))
    bound = min(limits, key=lambda what: limits[what])
    share, bound = (1.0, "memory") if limits[bound] >= 1 else (limits[bound], bound)
    return Estimate(share, bound, use, threads, in_flight, needed)


def work(path: Sequence[Instruction], tile: float) -> dict[str, float]:
    """Lanes of every unit that one thread uses, its share of the lines that a warp looks up in the L1 cache, and the
    bytes that it moves to and from the L2 cache. `tile`: the bytes of its elements; what it loads beyond them is a
    table, which waits in the L1 cache for all blocks."""
    found: defaultdict[str, float] = defaultdict(float, issue=len(path))
    for instruction in path:
        unit, lanes = _unit(instruction)
        if unit:
            found[unit] += lanes
        if unit == "imad":
            found["fma"] += lanes
    runs = {store: _runs(path, store) for store in (False, True)}
    # What is loaded waits in the L1 cache for the next instruction; stores do not. Neighbouring threads are so far
    # apart that each store touches a sector for every thread, unless several threads fit in one.
    stored = sum(max(width, min(sum(run), _SECTOR)) for run in runs[True] for width in run)
    found["l2"] = min(sum(map(sum, runs[False])), tile) + stored
    # Each access of a warp spans 32 times what its threads are apart.
    spans = (min(_WARP, max(1.0, _WARP * sum(run) / _LINE)) for both in runs.values() for run in both for _ in run)
    found["l1 lines"] = sum(spans) / _WARP
    return dict(found)


def _unit(instruction: Instruction) -> tuple[str, int]:
    base = instruction.base
    if instruction.access is not None:
        return "lsu", max(1, instruction.access.width // 4)
    # The uniform datapath works once for a whole warp.
    if base.startswith("U") or base in _CONTROL or base in _SPECIAL:
        return "", 0
    if base in _XU:
        return "xu", 1
    if base in _FLOAT:
        return "fma", 1
    if base in _DOUBLE:
        return "fp64", 1
    if base.startswith(("IMAD", "IDP")):
        return "imad", 1
    if base == "SHFL":
        return "lsu", 1
    return "alu", 1


def _runs(path: Sequence[Instruction], store: bool) -> list[list[int]]:
    """The global loads or stores of a thread, by runs of bytes that follow each other: the widths of each run.

    Where a thread accesses such bytes by several instructions, each touches only parts of its sectors and lines.
    """
    places: defaultdict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    version: Counter[str] = Counter()
    for instruction in path:
        access = instruction.access
        if access is not None and access.space == "global" and access.store == store:
            operand = next((one for one in instruction.operands if one.endswith("]")), "")
            match = _ADDRESS.search(operand)
            base, offset = (match[1], int(match[2] or "0", 16)) if match else ("", 0)
            number = version[base] + (offset in places[base, version[base]])
            # The same place again is of another address in the same register.
            version[base] = number
            places[base, number][offset] = access.width
    runs: list[list[int]] = []
    for of in places.values():
        end = None
        for offset in sorted(of):
            if offset != end:
                runs.append([])
            runs[-1].append(of[offset])
            end = offset + of[offset]
    return runs


def loaded(path: Sequence[Instruction]) -> tuple[int, int]:
    """The bytes that a thread loads from global memory, and in how many rounds: it waits for all that is under way
    where it first uses some of it."""
    total = rounds = 0
    waiting = set[int]()
    for instruction in path:
        access = instruction.access
        load = access is not None and access.space == "global" and not access.store
        used = {int(number) for operand in instruction.operands[load:] for number in _REGISTER.findall(operand)}
        if used & waiting:
            rounds += 1
            waiting.clear()
        if load and access is not None:
            total += access.width
            match = _REGISTER.match(instruction.operands[0])
            if match:
                waiting.update(range(int(match[1]), int(match[1]) + max(1, access.width // 4)))
    return total, rounds + bool(waiting)


def resident_threads(kernel: StaticKernel) -> int:
    """Threads of an SM at a time, as registers, shared memory and the counts of threads and blocks allow."""
    threads = kernel.source.kernel.threads
    warps = -(-threads // _WARP)
    per_warp = -(-kernel.registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    blocks = min(
        _REGISTERS // per_warp // warps,
        _THREADS // (warps * _WARP),
        GPUS[kernel.capability].shared // (kernel.shared + _BLOCK_SHARED),
        _BLOCKS,
    )
    return blocks * threads
