# SPDX-License-Identifier: Apache-2.0
"""Where the kernels read and write: sizes, alignments, bit offsets, strides, bytes around; on the host build."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from codes import random_codes
from engines import BY_WIDTH, by_kernels, by_reference, check_contiguous, check_strided, to_bytes
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import BY_RULE
from gpucast.core.rule import resolve
from gpucast.kernel.cast_kernel import PARTS, square_sides
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.kernel import parts_text
from gpucast.kernel.strides import Dims, collapse, squares
from gpucast.parity import host_build
from gpucast.parity.cases import NUMERIC, all_cases, rules
from gpucast.parity.host_build import Arguments, HostKernels

PAIRS = tuple(itertools.product(BY_WIDTH, BY_WIDTH))
PACKED = tuple(row for row in BY_WIDTH if row.packed)
WHOLE = tuple(row for row in BY_WIDTH if not row.packed)


@pytest.fixture(scope="module")
def kernels() -> HostKernels:
    whole = [cast_kernel(resolve(*pair), shape) for pair in PAIRS for shape in ("contiguous", "strided")]
    single = [
        cast_kernel(resolve(src, dst), shape, unpacked=True)
        for src, dst in itertools.product(PACKED, BY_WIDTH)
        for shape in ("contiguous", "strided")
    ]
    turned = [cast_kernel(resolve(*pair), "transposed") for pair in itertools.product(WHOLE, WHOLE)]
    return host_build.build([*whole, *single, *turned], optimize=False)


# ---- contiguous ----


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
def test_sizes_and_alignments(src: DType, dst: DType, kernels: HostKernels) -> None:
    rule = resolve(src, dst)
    source = cast_kernel(rule)
    block = source.elements * source.threads
    rng = np.random.default_rng([src.bits, dst.bits])
    codes = random_codes(src, 2 * block + 300, rng)
    wanted = by_reference(codes, rule)
    around = (k * source.elements + d for k in range(1, 9) for d in (-1, 0, 1))
    sizes = {*range(201), *around, block - 1, block, 2 * block + 3}
    for n in sorted(sizes):
        skip, src_offset, dst_offset = (int(v) for v in rng.integers(0, (9, 17, 17)))
        check_contiguous(kernels, rule, codes, wanted, n, skip, src_offset, dst_offset)
        check_contiguous(kernels, rule, codes, wanted, n)
    for src_offset, dst_offset in itertools.product(range(17), range(17)):
        check_contiguous(kernels, rule, codes, wanted, 5 * source.elements + 3, 0, src_offset, dst_offset)
    for skip in range(1, 17):
        check_contiguous(kernels, rule, codes, wanted, 4 * source.elements + 1, skip, skip % 5, skip % 3)


def test_accesses_of_32_bytes() -> None:
    """From sm_100 on kernels beside 6-bit types have them, where the address allows it."""
    names = ("FLOAT", "FLOAT6E2M3"), ("FLOAT6E3M2", "FLOAT"), ("FLOAT6E2M3", "FLOAT16"), ("DOUBLE", "FLOAT6E3M2")
    chosen = [resolve(*map(dtype, pair)) for pair in names]
    kernels = host_build.build(chosen, optimize=False, arch=100)
    for rule in chosen:
        source = cast_kernel(rule)
        assert source.tile * max(rule.src.bits, rule.dst.bits) % 256 == 0
        block = source.elements * source.threads
        codes = random_codes(rule.src, 2 * block + 5, np.random.default_rng(6))
        wanted = by_reference(codes, rule)
        for n, src_offset, dst_offset in itertools.product((block, 2 * block + 5), (0, 16, 24), (0, 8, 16)):
            check_contiguous(kernels, rule, codes, wanted, n, 0, src_offset, dst_offset)


def test_planes_of_bits() -> None:
    """From sm_100 on floats of 6 bits become types of 6 bits or fewer by logic, under every rule."""
    sources = [row for row in NUMERIC if row.is_float and row.bits == 6]
    targets = [row for row in NUMERIC if row.bits < 8]
    pairs = [(src, dst) for src, dst in itertools.product(sources, targets) if src != dst]
    every = {case.rule for case in all_cases(pairs) if case.random is None}
    # A third of each mode.
    chosen = [
        rule for mode in BY_RULE["float"] for rule in sorted((r for r in every if r.rounding == mode), key=str)[::3]
    ]
    chosen += sorted((rule for rule in every if rule.rounding not in BY_RULE["float"]), key=str)[::3]
    assert {rule.overflow for rule in chosen} == {"wrap", "saturate"}
    assert {rule.rounding for rule in chosen} > set(BY_RULE["float"])
    kernels = host_build.build(chosen, optimize=False, arch=100)
    for rule in chosen:
        block = cast_kernel(rule).block
        codes = random_codes(rule.src, block + 5, np.random.default_rng(6))
        check_contiguous(kernels, rule, codes, by_reference(codes, rule), block + 5)


@pytest.mark.parametrize(("src", "dst"), list(itertools.product(PACKED, BY_WIDTH)), ids=str)
def test_one_element_per_byte(src: DType, dst: DType, kernels: HostKernels) -> None:
    rule = resolve(src, dst)
    rng = np.random.default_rng([src.bits, dst.bits])
    own = random_codes(src, 400, rng)
    wanted = by_reference(own, rule)
    codes = own | rng.integers(0, 256, own.size).astype(np.uint8) << np.uint8(src.bits)
    for n in range(0, 300, 7):
        src_offset, dst_offset = (int(v) for v in rng.integers(0, 17, 2))
        check_contiguous(kernels, rule, codes, wanted, n, 3, src_offset, dst_offset, unpacked=True)


def test_every_byte_of_bool_counts() -> None:
    """All but 0 are true."""
    codes = np.arange(256, dtype=np.uint8)
    chosen = [rules(dtype("BOOL"), dst)[0] for dst in BY_WIDTH]
    kernels = host_build.build(chosen, optimize=False)
    for rule in chosen:
        wanted = by_reference((codes != 0).astype(np.uint8), rule)
        assert np.array_equal(by_kernels(kernels, rule, codes), wanted), rule


def test_in_place() -> None:
    """Types of one width may share memory: each thread reads its elements before it writes them."""
    group = [resolve(src, dst) for src in BY_WIDTH for dst in NUMERIC if src.bits == dst.bits and dst not in BY_WIDTH]
    assert {rule.src for rule in group} == set(BY_WIDTH)
    kernels = host_build.build(group, optimize=False)
    for rule in group:
        codes = random_codes(rule.src, 5000, np.random.default_rng(3))
        wanted = to_bytes(by_reference(codes, rule), rule.dst)
        for offset in range(9):
            data = np.zeros(offset + wanted.size, np.uint8)
            data[offset:] = to_bytes(codes, rule.src)
            address = data.ctypes.data + offset
            kernels.run(rule, Arguments(address, address, codes.size))
            assert np.array_equal(data[offset:], wanted), (rule, offset)


def test_more_elements_than_32_bits_count() -> None:
    """The last block of 2^33 elements and some; the pages in between are never touched."""
    rule = resolve(dtype("INT2"), dtype("UINT2"))
    contiguous, strided = sources = (cast_kernel(rule), cast_kernel(rule, "strided", unpacked=True))
    kernels = host_build.build(sources, optimize=False)
    n, half = (1 << 33) + 1002, 1 << 31
    src, dst = np.zeros(rule.src.nbytes(n), np.uint8), np.zeros(rule.dst.nbytes(n), np.uint8)
    src[half:] = np.arange(1, 252)
    arguments = Arguments(src.ctypes.data, dst.ctypes.data, n)
    kernels.run(rule, arguments, first_block=contiguous.blocks(n) - 1)
    # The last byte holds two elements; its other bits are padding.
    src[-1] &= 0b1111
    assert not dst[half - 1000 : half].any()
    assert np.array_equal(dst[half:], src[half:])

    # A source of n / 2 equal bytes, then n / 2 others, with stride 0 along the row.
    pair = np.array([1, 2], np.uint8)
    dims = collapse((2, n // 2), (1, 0), (0, 0)).packed
    arguments = Arguments(pair.ctypes.data, dst.ctypes.data, n, more=dims)
    last = strided.blocks(n) - 1
    kernels.run(rule, arguments, "strided", unpacked=True, first_block=last)
    written = last * strided.elements * strided.threads // 4
    assert written > half - 1000
    assert (dst[written:-1] == 0b10101010).all() and dst[-1] == 0b1010


def test_the_first_block_of_more_bits_than_32_bits_count() -> None:
    """Where the first tile begins before the array; only as much memory as the block touches."""
    pairs = (("FLOAT", "INT32"), ("FLOAT", "FLOAT16"), ("INT8", "UINT8"), ("DOUBLE", "INT8"))
    rules = [resolve(dtype(src), dtype(dst)) for src, dst in pairs]
    kernels = host_build.build(rules, optimize=False)
    for rule in rules:
        some = cast_kernel(rule).block
        x = (np.arange(some + 64) % 50 + 1).astype(rule.src.numpy)
        out = np.zeros(some + 64, rule.dst.numpy)
        begin = -out.ctypes.data % 16 // out.itemsize + 1
        for more in (0, -1, 5):
            out[...] = 0
            n = (1 << 32) // rule.src.bits + more
            kernels.run(rule, Arguments(x.ctypes.data, out[begin:].ctypes.data, n), blocks=1)
            assert not out[:begin].any()
            assert np.array_equal(out[begin : begin + some - 64], x[: some - 64].astype(rule.dst.numpy)), rule


# ---- strided ----

# Views of a one-dimensional array of 720 elements.
VIEWS = {
    "transposed": lambda x: x[:143].reshape(13, 11).T,
    "reversed": lambda x: x[::-1],
    "every third": lambda x: x[1::3],
    "both reversed": lambda x: x[:143].reshape(11, 13)[::-1, ::-2],
    "broadcast": lambda x: np.broadcast_to(x[:5, None], (3, 5, 7)),
    "sliding": lambda x: np.lib.stride_tricks.sliding_window_view(x[:40], 7),
    "five dimensions": lambda x: x[:720].reshape(3, 4, 5, 6, 2).transpose(3, 0, 4, 2, 1)[:, ::-1, :, 1:4],
    "cut rows": lambda x: x[:700].reshape(7, 100)[:, 2:83],
    "spread rows": lambda x: x[:720].reshape(3, 240)[:, ::2],
    "no dimension": lambda x: x[7:8].reshape(()),
    "one element": lambda x: x[7:8].reshape(1, 1, 1),
    "empty": lambda x: x.reshape(720, 1)[:, :0],
    "contiguous": lambda x: x.reshape(6, 120),
}
#: Those whose elements are all different memory, as a destination's must be.
TARGETS = [name for name in VIEWS if name not in ("broadcast", "sliding")]


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
def test_strides(src: DType, dst: DType, kernels: HostKernels) -> None:
    rule, rng = resolve(src, dst), np.random.default_rng([src.bits, dst.bits])
    for view in VIEWS.values():
        x = view(random_codes(src, 720, rng))
        # A packed source has no strides, and so no view.
        for unpacked in (True, False) if src.packed else (False,):
            skip = 0 if unpacked or not src.packed else 3
            if dst.packed:
                check_strided(kernels, rule, x, None, skip, unpacked=unpacked)
                continue
            fitting = [VIEWS[name] for name in TARGETS if VIEWS[name](np.empty(720)).shape == x.shape]
            for target in (lambda space, like=x: space[: like.size].reshape(like.shape), *fitting):
                check_strided(kernels, rule, x, target, skip, unpacked=unpacked)


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
def test_one_dimension(src: DType, dst: DType, kernels: HostKernels) -> None:
    """Blocks of which all elements are there, and the last one, of which they are not; forward and backward, aligned or
    not."""
    if src.packed or dst.packed:
        return
    rule, n = resolve(src, dst), 2 * 1024 + 77
    codes = random_codes(src, 3 * n, np.random.default_rng([src.bits, dst.bits]))
    for step, dst_step, offset in ((1, 2, 0), (-1, 1, 0), (3, -2, 0), (2, 1, 1), (1, 3, 1)):
        data = np.frombuffer(bytes(offset) + codes.tobytes(), np.uint8)[offset:].view(src.code_numpy)

        def target(space: np.ndarray, dst_step: int = dst_step) -> np.ndarray:
            return space[::dst_step][:n]

        check_strided(kernels, rule, data[::step][:n], target, room=6 * n, offset=offset)


#: Shapes, and the order of the axes in the memory of the source.
TRANSPOSES = [
    ((130, 70), (1, 0)),
    ((132, 196), (1, 0)),
    ((65, 17), (1, 0)),
    ((3, 70, 2, 33), (2, 0, 3, 1)),
    ((16, 5, 16), (2, 1, 0)),
]


@pytest.mark.parametrize(("src", "dst"), list(itertools.product(WHOLE, WHOLE)), ids=str)
def test_transposes(src: DType, dst: DType, kernels: HostKernels) -> None:
    """Squares, cut at the edges; sides of the destination with gaps and negative steps; any address."""
    rule = resolve(src, dst)
    sides = square_sides(src.bits, dst.bits)
    rng = np.random.default_rng(31)
    for shape, order in TRANSPOSES:
        memory = random_codes(src, math.prod(shape), rng).reshape([shape[axis] for axis in order])
        x = memory.transpose([order.index(axis) for axis in range(len(order))])
        space = np.zeros((2 * shape[0], *shape[1:]), dst.code_numpy)
        for out in (space[: shape[0]], space[::-2]):
            space[...] = 0
            found = squares(collapse(shape, x.strides, out.strides), x.itemsize, out.itemsize, sides)
            assert found is not None
            dims, n = found
            assert n >= x.size and n % math.prod(sides) == 0
            arguments = Arguments(x.ctypes.data, out.ctypes.data, n, more=dims.packed)
            kernels.run(rule, arguments, "transposed")
            assert np.array_equal(out, by_reference(x.ravel(), rule).reshape(shape))
            rest = space[shape[0] :] if out.strides[0] > 0 else space[::2]
            assert not rest.any(), "written beside the elements"


def test_other_strides_are_no_transpose() -> None:
    def of(shape: tuple[int, ...], src: tuple[int, ...], dst: tuple[int, ...]) -> object:
        return squares(collapse(shape, src, dst), 4, 4, (32, 32))

    assert of((64, 64), (4, 256), (256, 4)) == (Dims((64, 64), (4, 256), (256, 4)), 4096)
    assert of((64, 64), (512, 4), (256, 4)) is None, "dense along the same dimension"
    assert of((64, 64), (4, 256), (512, 8)) is None, "the destination is dense nowhere"
    assert of((64, 64), (8, 512), (256, 4)) is None, "the source is dense nowhere"
    assert of((64, 4), (4, 256), (16, 4)) is None, "too narrow for squares"


def test_collapse_joins_what_lies_together() -> None:
    assert collapse((2, 3, 4), (48, 16, 4), (24, 8, 2)).lengths == (24,)
    assert collapse((2, 3, 4), (48, 16, 4), (2, 4, 12)).lengths == (2, 3, 4)
    assert collapse((2, 1, 4), (0, 99, 0), (16, 99, 4)) == collapse((8,), (0,), (4,))
    assert collapse((3, 4), (-16, -4), (-8, -2)).src == (-4,)
    assert collapse((), (), ()).lengths == ()


# ---- the tools ----


def test_a_misaligned_access_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the alignment test of the kernel broken, the host build must object where a GPU would stop."""
    rule = resolve(dtype("INT8"), dtype("INT16"))
    text = parts_text(PARTS)
    broken = re.sub(r"const bool straight = .*;", "const bool straight = true;", text)
    assert broken != text
    monkeypatch.setattr(host_build, "parts_text", lambda parts: broken)
    kernels = host_build.build([rule], optimize=False)
    codes = np.arange(64, dtype=np.uint8)
    out = np.empty(64, np.uint16)
    kernels.run(rule, Arguments(codes.ctypes.data, out.ctypes.data, 63))
    with pytest.raises(RuntimeError, match="gpucast_int8_to_int16: [0-9]+ misaligned accesses"):
        kernels.run(rule, Arguments(codes.ctypes.data + 1, out.ctypes.data, 63))


#: What a GPU stops at or takes for other memory, and the words of the host build for it.
_PLANTED = {
    "*reinterpret_cast<volatile gpucast::u32*>(dst + 1) = 0;": "[0-9]+ misaligned accesses",
    "gpucast::ptx::st(dst + 4, 0, 0);": "[0-9]+ misaligned accesses",
    "gpucast::u32 a, b; gpucast::ptx::ld(reinterpret_cast<gpucast::u8*>(shared), a, b);": "accesses of global memory",
    "alignas(8) gpucast::u8 own[8]; gpucast::ptx::st(own, 0, 0);": "accesses of global memory to a block's or a thr",
    "shared[threadIdx.x + 1] = 0;": "1 indices outside of an array",
    "gpucast::ptx::st(dst, 0, 0); shared[threadIdx.x] = 0;": "",
}


@pytest.mark.parametrize("line", _PLANTED)
def test_the_host_build_stops_where_a_gpu_does(line: str) -> None:
    source = cast_kernel(resolve(dtype("INT8"), dtype("INT8")))
    head = f'extern "C" __global__ void {source.name}(const gpucast::u8*, gpucast::u32, gpucast::u8* dst, gpucast::i64)'
    text = f"{head} {{ __shared__ gpucast::u32 shared[{source.threads}]; (void)dst, (void)shared; {line} }}"
    kernels = host_build.build([replace(source, line=text)], optimize=False)
    memory = np.zeros(4, np.uint64)
    words = _PLANTED[line]
    with pytest.raises(RuntimeError, match=words) if words else contextlib.nullcontext():
        kernels.launch(source.name, Arguments(0, memory.ctypes.data, 1))
