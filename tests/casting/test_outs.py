# SPDX-License-Identifier: Apache-2.0
"""`out` of `gpucast.cast`: what is refused, by a first call as by later ones, and what memory may be shared.

The device path is the real `CupyDriver` on CuPy arrays over host memory; only CUDA's own functions are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import pytest

import gpucast
from bench import idle_cuda
from fake_cuda import Cuda
from gpucast import PackedArray
from gpucast.casting import plans

pytestmark = pytest.mark.usefixtures("no_plans")
Wrong = Iterator[tuple[Any, type[Exception], str]]

on_both_sides = pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
every_way = pytest.mark.parametrize("keywords", [{}, {"scale": 1.0}], ids=["plain", "fused"])


def make(on_device: bool, shape: tuple[int, ...], kind: Any = np.uint8) -> Any:
    return idle_cuda.array(shape, kind) if on_device else np.zeros(shape, kind)


def wrong_outs(x: Any, on_device: bool) -> Wrong:
    """For eight FLOATs that become UINT16."""
    yield make(on_device, (8,), np.int16), TypeError, "out has dtype int16; expected uint16"
    yield make(on_device, (9,), np.uint16), ValueError, r"out has shape \(9,\); expected \(8,\)"
    yield make(on_device, (2, 4), np.uint16), ValueError, r"out has shape \(2, 4\); expected \(8,\)"
    yield x.view(np.uint16)[4:12], ValueError, "out overlaps x"
    yield x.view(np.uint16)[1:9], ValueError, "out overlaps x"
    yield x.view(np.uint16)[::2], ValueError, "out overlaps x"
    yield [0] * 8, TypeError, "out is list; expected an array of UINT16"
    if on_device:
        yield idle_cuda.array((8,), np.uint16, 1), ValueError, "out is on cuda:1; the result belongs on cuda:0"
        yield np.empty(8, np.uint16), ValueError, "out is on the host; the result belongs on cuda:0"
        yield cupy.broadcast_to(make(True, (1,), np.uint16), (8,)), ValueError, "elements of out share memory"
        return
    frozen = np.zeros(8, np.uint16)
    frozen.flags.writeable = False
    yield frozen, ValueError, "out is read-only"
    yield np.broadcast_to(np.uint16(0), (8,)), ValueError, "out is read-only"
    yield np.zeros(8, ">u2"), TypeError, "out has dtype >u2; expected uint16"
    yield np.ma.zeros(8, np.uint16), TypeError, "out is a masked array"
    yield (
        np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (8,), (0,)),
        ValueError,
        "elements of out share memory",
    )


def wrong_packed_outs(memory: Any, on_device: bool) -> Wrong:
    """For eight elements of UINT4, at the start of that memory, that become INT4."""
    room = make(on_device, (4,))
    yield PackedArray(room, "UINT4", (8,)), TypeError, "out has dtype UINT4; expected INT4"
    yield PackedArray(room, "INT4", (7,)), ValueError, r"out has shape \(7,\)"
    yield PackedArray(memory[1:5], "INT4", (8,)), ValueError, "out overlaps x"
    yield make(on_device, (8,)).view(ml_dtypes.int4), TypeError, "expected a PackedArray of INT4"
    if on_device:
        yield PackedArray(idle_cuda.array((4,), np.uint8, 1), "INT4", (8,)), ValueError, "out is on cuda:1"
        yield PackedArray(np.zeros(4, np.uint8), "INT4", (8,)), ValueError, "out is on the host"


@every_way
@on_both_sides
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_wrong_outs(warm: bool, on_device: bool, keywords: dict[str, Any], cuda: Cuda) -> None:
    x, memory = make(on_device, (8,), np.float32), make(on_device, (8,))
    packed = PackedArray(memory[:4], "UINT4", (8,))
    cases = [(x, "UINT16", *wrong) for wrong in wrong_outs(x, on_device)]
    cases += [(packed, "INT4", *wrong) for wrong in wrong_packed_outs(memory, on_device)]
    if on_device:
        # Results on a device are packed whatever the source is.
        apart, codes = make(True, (16,), np.int16)[::2], make(True, (8,)).view(ml_dtypes.int4)
        cases.append((apart, "INT4", codes, TypeError, "expected a PackedArray of INT4"))
    for source, to, out, error, match in cases:
        plans.forget()
        if warm:
            for _ in range(2):
                gpucast.cast(source, to, **keywords, out=gpucast.cast(source, to, **keywords))
        cuda.launches.clear()
        with pytest.raises(error, match=f"^cast: .*{match}"):
            gpucast.cast(source, to, **keywords, out=out)
        assert cuda.launches == []


@every_way
@on_both_sides
def test_memory_that_may_be_shared(on_device: bool, keywords: dict[str, Any], cuda: Cuda) -> None:
    """In place with equal sizes, side by side to the byte, and interleaved."""
    room = make(on_device, (80,))
    x, behind = room[:32].view(np.float32), room[48:80].view(np.float32)
    packed, pairs = PackedArray(room[:4], "INT4", (8,)), room[:32].view(np.int16)
    for source, to, out in (
        (x, "INT32", x.view(np.int32)),
        (x, "INT32", room[32:64].view(np.int32)),
        (behind, "FLOAT16", room[32:48].view(np.float16)),
        (packed, "UINT4", PackedArray(room[:4], "UINT4", (8,))),
        (pairs[::2], "FLOAT16", pairs[1::2].view(np.float16)),
    ):
        for _ in range(2):
            assert gpucast.cast(source, to, **keywords, out=out) is out
    square = room[:64].view(np.float32).reshape(4, 4)
    for _ in range(2):
        with pytest.raises(ValueError, match="out overlaps x"):
            gpucast.cast(square, "INT32", **keywords, out=square.view(np.int32).T)


@every_way
def test_out_whose_elements_share_memory(keywords: dict[str, Any]) -> None:
    x, store = np.zeros((4, 3), np.float32), np.zeros(64, np.int8)
    for strides in ((1, 1), (2, 1), (0, 1), (1, 0), (1, 3)):
        out = np.lib.stride_tricks.as_strided(store, (4, 3), strides)
        with pytest.raises(ValueError, match="elements of out share memory"):
            gpucast.cast(x, "INT8", **keywords, out=out)
    for strides in ((3, 1), (1, 4), (16, 5)):
        out = np.lib.stride_tricks.as_strided(store, (4, 3), strides)
        assert gpucast.cast(x, "INT8", **keywords, out=out) is out


def test_memory_of_scale_and_amax(cuda: Cuda) -> None:
    for on_device in (False, True):
        x, room = make(on_device, (8,), np.float32), make(on_device, (8,), np.float32)
        codes = room.view(ml_dtypes.float8_e4m3fn)
        keywords = {"scale": 2.0, "amax": make(on_device, (), np.float32)}
        for _ in range(2):
            for more, out, match in (
                ({"amax": room[2:3]}, codes[8:16], "out shares memory with amax"),
                ({"amax": room[1:2]}, codes[:8], "out shares memory with amax"),
                ({"amax": x[3:4]}, None, "amax shares memory with x"),
            ):
                with pytest.raises(ValueError, match=f"^cast: {match}"):
                    gpucast.cast(x, "FLOAT8E4M3FN", **keywords | more, out=out)
            beside = codes[8:16]
            assert gpucast.cast(x, "FLOAT8E4M3FN", scale=2.0, amax=room[1:2], out=beside) is beside
            if on_device:  # On the host the scale is read before.
                with pytest.raises(ValueError, match="^cast: out shares memory with scale"):
                    gpucast.cast(x, "FLOAT8E4M3FN", **keywords | {"scale": room[2:3]}, out=beside)
