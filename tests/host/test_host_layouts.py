# SPDX-License-Identifier: Apache-2.0
"""Casts of the host beside the reference: tiles, chunks, memory and files. (Codes, and other layouts, are in
tests/parity/test_matrix.py.)"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from codes import HOST_LOOPS, assert_codes, codes_of
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.core.rule import CastRule, resolve
from gpucast.host import files, numbers
from gpucast.parity.cases import NUMERIC, WIDE, rules
from gpucast.reference import exact_cast
from hard_codes import hard_codes
from memory import extra_bytes

#: Elements that walks bring together at a time, as kernels/host/walk.hpp has them, times 8.
BLOCK = 1 << 13


def sample(rule: CastRule, size: int) -> np.ndarray:
    """Hard codes; the upper bits of packed types are at random, and BOOL has all bytes."""
    codes, noise = np.resize(hard_codes(rule.src, rule.dst, 1000), size), np.random.default_rng(size).bytes(size)
    if rule.src.packed:
        codes |= np.frombuffer(noise, np.uint8) << np.uint8(rule.src.bits)
    return (np.frombuffer(noise, np.uint8) if rule.src.family == "bool" else codes).view(rule.src.numpy)


def check(x: np.ndarray, rule: CastRule, out: np.ndarray | None = None) -> None:
    if out is None:
        out = np.empty(x.shape, rule.dst.numpy)
    before = x.tobytes()
    numbers.into(x, rule, out)
    assert x.tobytes() == before
    # `out` may be of swapped bytes.
    got = np.array(out).astype(rule.dst.numpy, copy=False)
    assert_codes(codes_of(got, rule.dst), codes_of(exact_cast.apply(x, rule), rule.dst), rule)


@pytest.fixture(params=HOST_LOOPS, ids=str)
def rule(request: pytest.FixtureRequest) -> CastRule:
    return resolve(*request.param)


@pytest.mark.parametrize("rows, columns", [(23, 41), (150, 70), (9, 600), (600, 9)])
def test_transposed(rule: CastRule, rows: int, columns: int) -> None:
    """Squares of a vector's lanes, tiles of them, and what is left beside both."""
    x = np.resize(sample(rule, 1009).view(rule.src.code_numpy), rows * columns).view(rule.src.numpy)
    x = x.reshape(rows, columns)
    check(x.T, rule)
    check(x[:, 1:].T, rule)
    check(x[::-1].T, rule)
    check(x[:, ::-1], rule, np.empty((columns, rows), rule.dst.numpy).T)


def test_chunk_boundaries(rule: CastRule) -> None:
    # The same codes at every place of a chunk; those of the whole array come from one chunk's.
    part = sample(rule, BLOCK // 4)
    wanted = exact_cast.apply(part, rule).view(rule.dst.code_numpy)
    for size in (1, 15, 17, *(blocks * BLOCK + extra for blocks in (1, 4) for extra in (-1, 0, 1))):
        x = np.resize(part.view(rule.src.code_numpy), size).view(rule.src.numpy)
        for source in (x, np.repeat(x, 2)[::2]):
            out = np.empty(size, rule.dst.numpy)
            numbers.into(source, rule, out)
            assert np.array_equal(out.view(rule.dst.code_numpy), np.resize(wanted, size))


@pytest.mark.parametrize("dst", NUMERIC, ids=str)
@pytest.mark.parametrize("src", WIDE, ids=str)
def test_wide_sources_in_whole_chunks(src: DType, dst: DType, exhaustive: bool) -> None:
    """Long enough for tables, and mixed: chunks of hard values, of ordinary ones, and of few hard among ordinary."""
    codes = hard_codes(src, dst, (1 << 20) if exhaustive else 3000)
    ordinary = exact_cast.cast(np.random.default_rng(3).standard_normal(2048) * 100, src.name).view(src.code_numpy)
    few = np.resize(ordinary, 20 * min(codes.size, 2000))
    few[::20] = codes[: few.size // 20]
    x = np.concatenate([codes, np.resize(ordinary, BLOCK), few]).view(src.numpy)
    for rule in rules(src, dst, [None]):
        check(x, rule)


@pytest.mark.parametrize("kind", [dtype(name) for name in ("UINT8", "INT16", "FLOAT", "INT64")], ids=str)
@pytest.mark.parametrize("size", [1 << 16, 1 << 21])
def test_copies(kind: DType, size: int) -> None:
    """About as many bytes as those from which on a loop makes copies, and those from which on it does not."""
    codes = np.frombuffer(np.random.default_rng(size).bytes(size + 8), kind.numpy)
    for count in range(size // kind.numpy.itemsize - 1, codes.size + 1):
        # `out` starts at several places of a vector.
        check(codes[:count], resolve(kind, kind), np.empty(count + 64, kind.numpy)[count % 64 :][:count])


def test_extra_memory_is_bounded(rule: CastRule) -> None:
    x = np.resize(sample(rule, 5000).view(rule.src.code_numpy), 1 << 20).view(rule.src.numpy)
    out = np.empty(x.shape, rule.dst.numpy)
    for source in (x, x[::-1]):
        assert extra_bytes(partial(numbers.into, source, rule, out)) < 1 << 16


@pytest.mark.parametrize(("size", "flags", "is_done"), [(9, os.O_RDWR, True), (10, os.O_RDWR, False), (9, 0, False)])
def test_from_file_to_file(tmp_path: Path, size: int, flags: int, is_done: bool) -> None:
    """A source that is too short, and a target that cannot be written, are no success."""
    rule = resolve(dtype("FLOAT"), dtype("FLOAT16"))
    cast, path, x = files.counted(rule), tmp_path / "x", np.arange(9, dtype=np.float32)
    if cast is None:
        pytest.skip("there is no extension module")
    path.write_bytes(bytes(24) + x.tobytes())
    file = os.open(path, flags)
    try:
        done = cast.file(files.FilePosition.of(rule.src, file, 24), files.FilePosition.of(rule.dst, file, 0), size)
    finally:
        os.close(file)
    assert (done is not None) == is_done
    if done is not None:
        assert done[0] == files.CastStats(0x4800, 1, 1)
        assert path.read_bytes()[: 2 * size] == x.astype(np.float16).tobytes()


PAST_CACHES = [
    *(("FLOAT8E4M3FN", dst) for dst in ("INT8", "FLOAT8E5M2", "BFLOAT16", "FLOAT", "DOUBLE")),
    *(("INT4", "FLOAT6E2M3"), ("UINT16", "FLOAT8E4M3FN"), ("FLOAT16", "FLOAT4E2M1"), ("FLOAT16", "FLOAT8E5M2")),
    *(("FLOAT16", "FLOAT16"), ("BOOL", "BOOL"), ("INT8", "BOOL")),
]


@pytest.mark.skipif(MODULE is None, reason="the extension module could not be built here")
@pytest.mark.parametrize(("src", "dst"), PAST_CACHES)
@pytest.mark.parametrize("before", [0, 3])
def test_more_results_than_caches_hold(src: str, dst: str, before: int) -> None:
    """They are written past these (`cache_bytes` of kernels/host/walk.hpp), from wherever they begin."""
    rule = resolve(dtype(src), dtype(dst))
    size = (1 << 24) // rule.dst.code_numpy.itemsize + 37
    every = np.arange(1 << 8 * rule.src.code_numpy.itemsize, dtype=rule.src.code_numpy)
    codes = np.random.default_rng(5).integers(0, every.size, size + before, every.dtype)[before:]
    if src == "BOOL":
        every, codes = every[:2], codes % 2
    wanted = codes_of(exact_cast.apply(every.view(rule.src.numpy), rule), rule.dst)[codes]
    out = np.empty(size + before, rule.dst.numpy)[before:]
    numbers.into(codes.view(rule.src.numpy), rule, out)
    assert_codes(codes_of(out, rule.dst), wanted, rule)
