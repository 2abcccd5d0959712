# SPDX-License-Identifier: Apache-2.0
"""Kernels of Hadamard transforms, 4over6, groups and norms, executed from their PTX on some numbers.

No solver knows these kernels. The machine that proofs use runs their PTX here on known numbers, and the results are
those of the reference. It knows no shuffles, so kernels whose threads share a block are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.casting.fused_options import fused_rule
from gpucast.codegen.spec import CastSpec
from gpucast.core.dtypes import dtype
from gpucast.core.formats import Hadamard
from gpucast.core.rule import CastRule, Options
from gpucast.mixed.gpu.norm_kernels import FinishSpec, NormArguments, NormSpec
from gpucast.parity.proof import certificate, instructions
from gpucast.parity.proof import terms as t
from gpucast.parity.proof.evaluation import evaluate
from gpucast.parity.proof.machine import Fault, Machine, Memory
from gpucast.parity.proof.ptx import read
from gpucast.parity.proof.terms import Term, const
from gpucast.quantization import quantize_grouped, recipes
from gpucast.quantization.gpu.grouped_on_gpu import GroupedSpec
from gpucast.quantization.gpu.hadamard_source import HadamardArguments, HadamardResult, HadamardSpec
from gpucast.reference import exact_hadamard, exact_quantize
from host_driver import elements

Array = np.ndarray[Any, Any]
ARCHS = ("sm_90", "sm_100a")
FLOAT, BFLOAT16 = dtype("FLOAT"), dtype("BFLOAT16")
NVFP4, FOUR = (recipes.find(name, "tests") for name in ("nvfp4", "nvfp4_4over6"))
SIGNED = Hadamard(16, 0x35A7)


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


class Arrays:
    """The memory of a device: arrays at addresses."""

    def __init__(self) -> None:
        self.sources: list[tuple[range, Any]] = []
        self.results: list[tuple[range, Array]] = []
        self._next = 0x7000_0000_0000

    def source(self, x: Array) -> int:
        at, data = self._place(x.nbytes), x.tobytes()
        self.sources.append((range(at, at + len(data)), lambda byte: const(data[byte - at], 8)))
        return at

    def result(self, like: Array) -> int:
        made = np.full(like.nbytes, 0xA5, np.uint8)
        at = self._place(made.size)
        self.results.append((range(at, at + made.size), made))
        return at

    def _place(self, size: int) -> int:
        at, self._next = self._next, self._next + -(-size // 4096) * 4096
        return at

    def run(self, source: Any, arch: str, arguments: Sequence[bytes], blocks: int = 1) -> list[bytes]:
        """Run all threads of the blocks of a launch; returns what the results hold."""
        kernel = read(certificate.ptx(source, arch))
        memory = Memory(self.sources, [addresses for addresses, _ in self.results])
        machine = Known(kernel, memory, [[const(byte, 8) for byte in data] for data in arguments])
        for block in range(blocks):
            memory.empty()
            running = [machine.thread(block, number) for number in range(source.threads)]
            while running:
                waiting = []
                for thread in running:
                    machine.begin()
                    stopped = next(thread, thread) is not thread
                    waiting += [thread] * stopped
                    for byte, value in memory.written.items():
                        addresses, made = next(one for one in self.results if byte in one[0])
                        made[byte - addresses.start] = int(value)
                if waiting and len(waiting) != len(running):
                    raise Fault("a barrier that not all threads reach")
                running = waiting
        return [made.tobytes() for _, made in self.results]


def launch(src: int, dst: int, n: int, more: bytes) -> list[bytes]:
    return [struct.pack("<Q", src), bytes(4), struct.pack("<Q", dst), struct.pack("<q", n), more]


def expected(parts: Any) -> list[bytes]:
    codes = gpucast.PackedArray.pack(parts.data).data
    return [codes.tobytes(), parts.scales.tobytes()]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("format", "how", "row_scaled"),
    [(NVFP4, SIGNED, False), (FOUR, None, False), (FOUR, SIGNED, True)],
    ids=["hadamard", "4over6", "both by rows"],
)
def test_quantizing(format: Any, how: Hadamard | None, row_scaled: bool, arch: str) -> None:
    x, arrays = numbers(3, 96), Arrays()
    y = x if how is None else exact_hadamard.transform(x, how)
    scale = np.float32([0.02, 0.3, 0.004]) if row_scaled else np.float32(0.02)
    wanted = exact_quantize.quantize(y, format, scale=scale)
    codes, scales = expected(wanted)
    spec = HadamardSpec(CastRule(BFLOAT16, format.element), "rows", 16 if how else 0, format, row_scaled=row_scaled)
    src, data, of_blocks = arrays.source(x), *(arrays.result(np.frombuffer(one, np.uint8)) for one in (codes, scales))
    result = HadamardResult(data, of_blocks, 0, arrays.source(np.atleast_1d(scale)))
    arguments = HadamardArguments(result, columns=96, transform=how)
    assert arrays.run(spec.source(), arch, launch(src, data, x.size, arguments.to_bytes())) == [codes, scales]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("to", "inverse", "strided"), [("FLOAT", False, False), ("BFLOAT16", True, True)])
def test_transforms(to: str, inverse: bool, strided: bool, arch: str) -> None:
    x, arrays, how = numbers(32, 8, "FLOAT" if inverse else "BFLOAT16"), Arrays(), Hadamard(32, 0x9E3779B9)
    x[3, 1] = np.inf
    wanted = gpucast.cast(exact_hadamard.transform(x, how, axis=0, inverse=inverse), to)
    if not strided:
        x, wanted = (np.ascontiguousarray(one.T) for one in (x, wanted))
    spec = HadamardSpec(CastRule(dtype(x.dtype), dtype(to)), "transform", 32, inverse=inverse, strided=strided)
    src, dst = arrays.source(x), arrays.result(wanted)
    arguments = HadamardArguments(inner=8 if strided else 1, transform=how)
    assert arrays.run(spec.source(), arch, launch(src, dst, x.size, arguments.to_bytes())) == [wanted.tobytes()]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("name", "random"), [("nvfp4", {"rounding": "stochastic", "seed": 5}), ("cast", {})], ids=["nvfp4", "cast"]
)
def test_groups(name: str, random: dict[str, Any], arch: str) -> None:
    x, ends, scale, arrays = numbers(5, 32), np.int32([2, 2, 5]), np.float32([0.02, 1, 0.3]), Arrays()
    if name == "cast":
        wanted = gpucast.cast_grouped(x, ends, "FLOAT8E4M3FN", scale=scale, pad=2, **random)
        options = Options(caller="tests", rounding=random.get("rounding"))
        spec = GroupedSpec(fused_rule(BFLOAT16, dtype("FLOAT8E4M3FN"), options, scaled=True), None, bool(random))
    else:
        wanted = quantize_grouped(x, ends, "nvfp4", scale=scale, pad=2, **random)
        spec = GroupedSpec(CastRule(BFLOAT16, NVFP4.element), NVFP4, bool(random))
    data = wanted.data.data if name == "nvfp4" else wanted.data
    made = [np.atleast_1d(one) for one in (data, wanted.scales, wanted.offsets, wanted.valid) if one is not None]
    src, offsets, factors = (arrays.source(one) for one in (x, ends, scale))
    at = [arrays.result(one) for one in made]
    of_blocks = at[1] if wanted.scales is not None else 0
    rows = wanted.data.shape[0]
    arguments = struct.pack(
        "<5Q3qQ3If5I4x2Q", offsets, factors, of_blocks, *at[-2:], 5, 32, rows, (2**64 - 1) // 32,
        *gpucast.quantization.gpu.source.divide_by(32), 1.0, 1, 3, 2, 0, 0, random.get("seed", 0), 0,
    )  # fmt: skip
    found = arrays.run(spec.source(), arch, launch(src, at[0], rows * 32, arguments))
    assert found == [one.tobytes() for one in made]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_norm(arch: str, exhaustive: bool) -> None:
    if arch == "sm_90" and not exhaustive:
        pytest.skip("long: run with --exhaustive")
    grads = [numbers(3, 70), numbers(1, 13)]
    norm = np.zeros(1, np.float32)
    gpucast.mixed.StaticLossScale(8.0).unscale(grads, norm=norm)
    source, arrays = NormSpec((CastSpec(CastRule(BFLOAT16, FLOAT)),), 4096).source(), Arrays()
    table = np.zeros((), source.table)
    table["src"][:2] = [arrays.source(one) for one in grads]
    table["n"][:2], table["first_block"][:2], table["first_block"][2:] = [one.size for one in grads], [0, 1], 2**32 - 1
    table["sums"] = arrays.result(np.zeros(2))
    sums = np.frombuffer(arrays.run(source, arch, [table.tobytes()], blocks=2)[0])
    last = Arrays()
    src, dst, at = last.source(sums), last.result(norm), last.result(norm)
    arguments = NormArguments(2, 0, at, 0.125, np.inf).to_bytes()
    factor, found = last.run(FinishSpec().source(), arch, launch(src, dst, 1, arguments))
    assert (found, np.frombuffer(factor, np.float32)) == (norm.tobytes(), 0.125)
    assert elements(norm)[0] == np.float32(np.sqrt(sum(np.square(one.astype(float)).sum() for one in grads)) / 8)
