# SPDX-License-Identifier: Apache-2.0
"""An estimate of how close to the speed of memory a kernel can come, from its machine code alone.

The model assumes that every SM is busy, and that the slowest unit sets the speed: memory, or a unit of the SM. It
ignores latency, warps that wait for loads, and the power limit, so it is an upper bound. It shows which kernels cannot
reach the speed of memory, and why, but not how fast a kernel is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bench.sass import Instruction
from bench.static_kernels import StaticKernel


@dataclass(frozen=True)
class GPU:
    """A GPU of the estimate."""

    name: str
    #: Its compute capability, such as 90 for sm_90 and sm_90a.
    capability: int
    sms: int
    #: GHz while every SM works.
    clock: float
    #: TB/s, read and written together, that good kernels reach in published results.
    bandwidth: float
    #: Lanes per clock and SM of units that differ between GPUs: float32 arithmetic, float64 arithmetic.
    fma: int
    fp64: int
    #: Bytes of shared memory of an SM.
    shared: int


#: Bandwidths: 87 to 92 % of the vendor's peak of 2.04, 3.35, 4.8 and 7.67 TB/s, which is what the quickest published
#: element-wise kernels reach on H100 (torchao's table of float8 kernels, 2.90), H200 (NVIDIA/cccl issue 2396, 4.26) and
#: B200 (NVIDIA/cccl issue 7391, 7.09); on A100 it is the same share, without a published kernel of that speed. Clocks:
#: what H100 and H200 run at under load, taken for B200 too within 1 %; the boost clock of A100. Units: NVIDIA's
#: descriptions of the architectures.
GPUS = (
    GPU("A100", 80, 108, 1.41, 1.80, 64, 32, 164 << 10),
    GPU("H100", 90, 132, 1.83, 2.90, 128, 64, 228 << 10),
    GPU("H200", 90, 132, 1.83, 4.20, 128, 64, 228 << 10),
    GPU("B200", 100, 148, 1.85, 7.09, 128, 64, 228 << 10),
)

#: Lanes per clock and SM, where all four GPUs are alike. "issue": four warps of 32 threads. "alu": integers but for
#: multiplication, logic, shifts, compares, selects, byte permutes, and conversions that work on pairs. "imad": integer
#: multiplication and what the compiler does by it, on half of the float32 unit. "xu": other conversions, leading
#: zeros. "lsu": words of four bytes to and from memory. Sources: NVIDIA's table of arithmetic throughput and what its
#: developer forum says of the pipes of Volta to Hopper. B200 is taken to be as Hopper is, for want of a source.
LANES = {"issue": 128, "alu": 64, "imad": 64, "xu": 16, "lsu": 32}

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


@dataclass(frozen=True)
class Estimate:
    gpu: str
    #: The share of the achievable bandwidth, 0 to 1.
    share: float
    #: What limits the speed: "memory" or a unit.
    bound: str
    #: Resident threads of an SM, of at most 2048.
    threads: int


def estimates(kernel: StaticKernel) -> list[Estimate]:
    """For every GPU that runs the kernel's architecture; none for a kernel with a loop, whose work is not known."""
    return [] if kernel.loop else [estimate(kernel, gpu) for gpu in GPUS if gpu.capability == kernel.capability]


def estimate(kernel: StaticKernel, gpu: GPU) -> Estimate:
    lanes = {**LANES, "fma": gpu.fma, "fp64": gpu.fp64}
    # Seconds times 10^12 for all elements of a thread, if there were one SM with one unit.
    memory = kernel.moved * kernel.source.elements / gpu.bandwidth
    rate = gpu.sms * gpu.clock / 1000
    times = {unit: count / (lanes[unit] * rate) for unit, count in work(kernel.path).items()}
    slowest = max(times, key=lambda unit: times[unit])
    share = min(1.0, memory / times[slowest])
    return Estimate(gpu.name, share, "memory" if share == 1.0 else slowest, resident_threads(kernel, gpu))


def work(path: tuple[Instruction, ...]) -> Counter[str]:
    """Lanes of every unit that one thread uses."""
    found: Counter[str] = Counter(issue=len(path))
    for instruction in path:
        unit, lanes = _unit(instruction)
        if unit:
            found[unit] += lanes
        if unit == "imad":
            found["fma"] += lanes
    return found


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


def resident_threads(kernel: StaticKernel, gpu: GPU) -> int:
    """Threads of an SM at a time, as registers, shared memory and the counts of threads and blocks allow."""
    threads = kernel.source.threads
    warps = -(-threads // _WARP)
    per_warp = -(-kernel.registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    blocks = min(
        _REGISTERS // per_warp // warps,
        _THREADS // (warps * _WARP),
        gpu.shared // (kernel.shared + _BLOCK_SHARED),
        _BLOCKS,
    )
    return blocks * threads
