# SPDX-License-Identifier: Apache-2.0
"""Kernels of Hadamard transforms, 4over6 and groups, executed from their PTX on some numbers.

No solver knows these kernels. The machine that proofs use runs their PTX here on known numbers, and the results are
those of the reference and of the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cupy
import numpy as np
import pytest

import gpucast
from gpucast.parity.proof import certificate, instructions
from gpucast.parity.proof import terms as t
from gpucast.parity.proof.evaluation import evaluate
from gpucast.parity.proof.machine import Fault, Machine, Memory
from gpucast.parity.proof.ptx import read
from gpucast.parity.proof.terms import Term, const
from gpucast.quantization import cast_grouped, quantize_grouped
from host_driver import ARRAYS, HostDriver, elements, installed, upload

Array = np.ndarray[Any, Any]
ARCHS = ("sm_90", "sm_100a")
SIGNED: dict[str, Any] = {"hadamard": 16, "seed": 0x35A7}
SCALES = np.float32([0.02, 0.3, 0.004])


def numbers(rows: int, columns: int, source: str = "BFLOAT16") -> Array:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, columns)) * 2.0 ** rng.integers(-6, 7, (rows, 1))
    found: Array = gpucast.cast(x, source)
    return found


def exact(function: Any, kind: Any) -> Any:
    """An instruction on known numbers of a type."""
    code = f"u{np.dtype(kind).itemsize}"

    def run(*operands: Term) -> Term:
        with np.errstate(all="ignore"):
            found = function(*(np.array(int(one), code).view(kind) for one in operands))
        return const(int(np.asarray(found, kind).view(code)), operands[0].width)

    return run


@pytest.fixture(autouse=True)
def more_instructions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those that proofs do not know. `rcp.approx` may be off by one ULP, on which no result depends."""
    t.forget()
    known = {
        "rcp.approx.ftz.f32": ((32,), exact(lambda a: 1 / a, np.float32)),
        "div.rn.f32": ((32, 32), exact(np.divide, np.float32)),
        "sub.rn.f32": ((32, 32), exact(np.subtract, np.float32)),
        "sub.rn.f32x2": ((64, 64), instructions.lanes(exact(np.subtract, np.float32))),
        "sqrt.rn.f32": ((32,), exact(np.sqrt, np.float32)),
        "sqrt.rn.f64": ((64,), exact(np.sqrt, np.float64)),
        "mul.hi.u32": ((32, 32), lambda a, b: const(int(a) * int(b) >> 32, 32)),
        "mul.hi.u64": ((64, 64), lambda a, b: const(int(a) * int(b) >> 64, 64)),
    }
    for name, operation in known.items():
        monkeypatch.setitem(instructions.OPERATIONS, name, operation)
    yield
    t.forget()


class Known(Machine):
    """A machine whose registers hold numbers."""

    def _set(self, operand: str, value: Term, here: Any, guard: Term) -> None:
        known = value if value.constant else const(int(evaluate(value, {})), value.width)
        super()._set(operand, known, here, guard)


def execute(
    source: Any, arch: str, memory: Memory, arguments: Sequence[bytes], blocks: int, write: Callable[[int, int], None]
) -> None:
    """Run all threads of the blocks of a launch, those of a block together from one barrier or shuffle to the next."""
    machine = Known(read(certificate.ptx(source, arch)), memory, [[const(b, 8) for b in data] for data in arguments])
    for block in range(blocks):
        memory.empty()
        running = {number: machine.thread(block, number) for number in range(source.threads)}
        sent: dict[int, Term] = {}
        while running:
            stops = {}
            for number, thread in running.items():
                machine.begin()
                with contextlib.suppress(StopIteration):
                    stops[number] = thread.send(sent.get(number))
                for byte, value in memory.written.items():
                    write(byte, int(value))
            shuffles = {number: stop for number, stop in stops.items() if stop is not None}
            # Whole warps may end before a shuffle of the others.
            if shuffles.keys() != stops.keys() and (shuffles or stops.keys() != running.keys()):
                raise Fault("a barrier or a shuffle that not all threads reach")
            if len(shuffles) != 32 * len({(number // 32, stop.at) for number, stop in shuffles.items()}):
                raise Fault("not all lanes of a warp are at one shuffle")
            sent = {number: shuffles[number ^ int(stop.bits)].given for number, stop in shuffles.items()}
            running = {number: running[number] for number in stops}


class PtxDriver(HostDriver):
    """Launches run the PTX, on the memory of this process."""

    def __init__(self, arch: str) -> None:
        super().__init__(1)
        self.ptx_arch = arch

    def load(self, source: Any) -> Any:
        def run(src: int, dst: int, n: int, more: Any) -> None:
            first = [struct.pack("<Q", src), bytes(4), struct.pack("<Q", dst), struct.pack("<q", n)]
            self._run(source, first + ([] if more is None else [more.to_bytes()]), source.blocks(n, dst))

        return run

    def load_many(self, source: Any) -> Any:
        return lambda blocks, table: self._run(source, [table.tobytes()], blocks)

    def _run(self, source: Any, arguments: Sequence[bytes], blocks: int) -> None:
        def write(byte: int, value: int) -> None:
            ctypes.memset(byte, value, 1)

        arrays = list(ARRAYS)
        memory = Memory([(array, lambda byte: const(ctypes.string_at(byte, 1)[0], 8)) for array in arrays], arrays)
        execute(source, self.ptx_arch, memory, arguments, blocks, write)
        self.launched.append((source.name, 0))


def beside(x: Any, y: Any) -> Any:
    """An array where x is."""
    return upload(np.asarray(y)) if isinstance(x, cupy.ndarray) else np.array(y)


def quantized(x: Any, *arguments: Any, **keywords: Any) -> list[Any]:
    return list(gpucast.quantize(x, *arguments, **keywords).parts().values())


def grouped(x: Any, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
    found = function(x, beside(x, np.int32([2, 2, 5])), *arguments, pad=2, **keywords)
    return [part for part in found if part is not None]


#: Calls, the shape and type of their array.
CALLS: dict[str, tuple[Callable[[Any], list[Any]], tuple[int, int], str]] = {
    "hadamard": (lambda x: quantized(x, "nvfp4", **SIGNED, scale=beside(x, SCALES[:1])), (3, 96), "BFLOAT16"),
    "4over6": (lambda x: quantized(x, "nvfp4_4over6", scale=beside(x, SCALES[:1])), (3, 96), "BFLOAT16"),
    "both by rows": (
        lambda x: quantized(x, "nvfp4_4over6", **SIGNED, scale=beside(x, SCALES)), (3, 96), "BFLOAT16"
    ),
    "its own scale": (lambda x: quantized(x, "nvfp4", hadamard=32, seed=3), (3, 32), "BFLOAT16"),
    "transform": (lambda x: [gpucast.hadamard(x, 32, seed=7)], (8, 32), "BFLOAT16"),
    "inverse": (lambda x: [gpucast.hadamard(x, 32, axis=0, seed=7, inverse=True, to="BFLOAT16")], (32, 8), "FLOAT"),
    "nvfp4 groups": (
        lambda x: grouped(x, quantize_grouped, "nvfp4", scale=beside(x, SCALES), rounding="stochastic", seed=5),
        (5, 32), "BFLOAT16",
    ),
    "mxfp8 groups": (lambda x: grouped(x, quantize_grouped, "mxfp8e4m3"), (5, 32), "BFLOAT16"),
    "cast groups": (
        lambda x: grouped(x, cast_grouped, "FLOAT8E4M3FN", scale=beside(x, SCALES)), (5, 32), "BFLOAT16"
    ),
    "mxfp8": (lambda x: quantized(x, "mxfp8e4m3"), (3, 96), "BFLOAT16"),
    "int8_64": (lambda x: quantized(x, "int8_64"), (2, 64), "FLOAT"),
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, arch: str) -> None:
    call, shape, source = CALLS[name]
    x = numbers(*shape, source)
    if name not in ("hadamard", "4over6", "both by rows", "cast groups"):
        x[0, 3:6] = [np.nan, -0.0, 1e-38]
    wanted = call(x)
    with installed(PtxDriver(arch)) as driver:
        found = call(upload(x))
    assert driver.launched
    for one, other in zip(found, wanted, strict=True):
        assert elements(one).tobytes() == elements(other).tobytes()


_SHUFFLE = r"shfl.sync.bfly.b32 \1, 31, -1;"
#: Odd lanes are at another instruction.
_APART = (
    "{ .reg .pred odd; .reg .b32 lane; mov.b32 lane, %tid.x; and.b32 lane, lane, 1; setp.ne.s32 odd, lane, 0; "
    f"@odd bra $odd; {_SHUFFLE} bra.uni $all; $odd: {_SHUFFLE} $all: }}"
)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (_SHUFFLE.replace("31", "15"), "a shuffle over parts of a warp"),
        (_SHUFFLE.replace("-1", "1"), "a shuffle that not all threads reach"),
        (f"@%p1 {_SHUFFLE}", "a shuffle that not all threads reach"),
        (_APART, "not all lanes of a warp are at one shuffle"),
    ],
)
def test_shuffles_of_parts_of_a_warp_are_faults(monkeypatch: pytest.MonkeyPatch, changed: str, words: str) -> None:
    ptx = certificate.ptx

    def altered(source: Any, arch: str) -> str:
        pattern = r"shfl\.sync\.bfly\.b32\s+([^,]*,[^,]*,[^,]*),[^;]*;"
        text, count = re.subn(pattern, changed, ptx(source, arch), count=1)
        assert count == 1
        return text

    monkeypatch.setattr(certificate, "ptx", altered)
    with installed(PtxDriver("sm_90")), pytest.raises(Fault, match=words):
        gpucast.quantize(upload(numbers(1, 256)), "float8e4m3fn_tensor")
