# SPDX-License-Identifier: Apache-2.0
"""What a GPU forbids, planted in the PTX of kernels by small edits: the machine stops at each, and says why."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpucast
from host_driver import device_array, elements, installed, upload
from ptx_driver import PtxDriver
from tests.proof.machine import Fault

X = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
#: The names of kernels, how they end, and calls that launch them.
TILES = "tiles32_same_along_swapped_down"
TOP = "_global_top"
CAST = "float32_to_float8e4m3fn"
STAY = "quantize_bfloat16_float8_e4m3fn_float8_e8m0fnu_floor_tiles32_same_along_swapped_down"
CALLS: dict[str, Callable[[], Any]] = {
    TILES: lambda: gpucast.quantize(upload(X), "mxfp8e4m3", transpose="both"),
    STAY: lambda: gpucast.quantize(upload(gpucast.cast(np.tile(X, 4), "BFLOAT16")), "mxfp8e4m3", transpose="both"),
    TOP: lambda: gpucast.quantize(upload(X), "nvfp4"),
    CAST: lambda: gpucast.cast(upload(X), "FLOAT8E4M3FN"),
}
#: The name of the fault, the kernel, a pattern in its text, what takes its place, and the words of the machine.
FAULTS: tuple[tuple[str, str, str, str, str], ...] = (
    ("a shared address as a global one", TILES, r"st\.shared\.u32 \t\[(%r\d+)\]",
     r"cvt.u64.u32 %rd1, \1; cvta.shared.u64 %rd1, %rd1; st.global.u32 [%rd1]", "an address of shared memory"),
    ("a global address as a shared one", TILES, r"(ld\.global(?:\.nc)?\.v4\.u32 \{[^}]*\}, \[(%rd\d+)\];)",
     r"ld.shared.u32 %r1, [\2]; \1", "outside of shared memory: an address of global memory"),
    ("a store to parameters", CAST, r"mov\.u32 \t%r1, %tid\.x;",
     "mov.u32 %r1, %tid.x; mov.u64 %rd1, gpucast_float32_to_float8e4m3fn_param_2; st.global.u32 [%rd1], %r1;",
     "an address of param memory"),
    ("a lost barrier", TILES, r"bar\.sync \t0;", "", "a race on shared memory"),
    ("a barrier in divergent code", CAST, r"\tret;",
     ("{ .reg .pred odd; .reg .b32 lane; mov.u32 lane, %tid.x; and.b32 lane, lane, 1; setp.ne.s32 odd, lane, 0; "
     "@odd bar.sync 0; } ret;"), "a barrier that not all threads reach"),
    ("a lane that stays away", TOP, r"(shfl\.sync\.bfly\.b32 \t(%r\d+)[^;]*;)",
     (r"{ .reg .pred odd; .reg .b32 lane; mov.u32 lane, %tid.x; and.b32 lane, lane, 7; setp.ne.s32 odd, lane, 7; "
     r"mov.b32 \2, 0; @odd \1 }"), "a shuffle that not all threads reach"),
    ("a lane outside of the mask", TOP, r"(shfl\.sync\.bfly\.b32 \t[^,]*, [^,]*), [^,]*, ([^,]*), ([^;]*);",
     (r"{ .reg .b32 lane, half; mov.u32 lane, %tid.x; and.b32 lane, lane, 16; mov.u32 half, 65535; "
     r"shl.b32 half, half, lane; \1, 16, \2, half; }"), "a lane outside of its mask"),
    ("shared memory that nobody has written", TILES, r"st\.shared\.u32 \t\[(%r\d+)\+64\]",
     r"ld.shared.u32 %r1, [\1+64]; st.shared.u32 [\1+64]", "shared memory that nobody has written"),
    ("an undefined register", CAST, r"mov\.u32 \t%r1, %tid\.x;", "", "%r1 is read before it is written"),
    ("a misaligned vector", CAST, r"ld\.global\.v4\.u32 (\{[^}]*\}), \[(%rd\d+)\]", r"ld.global.v4.u32 \1, [\2+4]",
     "misaligned for 16 bytes"),
    ("out of bounds by one vector", CAST, r"st\.global\.u32 \t\[(%rd\d+)\+1536\]", r"st.global.u32 [\1+8192]",
     "outside of the arrays"),
    ("a shifted pointer", CAST, r"(ld\.param\.u64 \t(%rd10), [^;]*;)", r"\1 add.s64 \2, \2, 4;",
     "outside of the arrays"),
    ("two threads that write one place", CAST, r"mov\.u32 \t%r1, %tid\.x;",
     "mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [gpucast_float32_to_float8e4m3fn_param_2]; st.global.u8 [%rd1], %r1;",
     "two threads write different numbers to one place"),
    ("a lost fence", TOP, r"fence\.acq_rel\.gpu;", "", "without a fence between the two"),
    ("a lost fence of the last block", TOP, r"(?s)(atom\.global\.inc\.u32[^;]*;.*?)fence\.acq_rel\.gpu;", r"\1",
     "without a fence between the two"),
    ("a read of another block's result", CAST, r"(st\.global\.u32 \t\[%rd\d+\+1536\])",
     (r"{ .reg .b64 at; .reg .b32 there; ld.param.u64 at, [gpucast_float32_to_float8e4m3fn_param_2]; "
      r"ld.global.u32 there, [at]; } \1"), "a read of what another block writes"),
    ("a race by stores to one byte", TILES, r"(bar\.sync \t0;)",
     r"\1 { .reg .b32 me, zero; mov.u32 me, %tid.x; mov.u32 zero, 1024; st.shared.u32 [zero], me; }",
     "a race on shared memory"),
    ("a copy that nobody waits for", STAY, r"cp\.async\.wait_all;", "", "to which a copy is under way"),
    ("copies that wait for one group too few", STAY, r"cp\.async\.wait_all;",
     "cp.async.commit_group; cp.async.wait_group 1;", "to which a copy is under way"),
    ("copies to one place", STAY, r"\tret;",
     (r"{ .reg .b64 at; ld.param.u64 at, [gpucast_" + STAY + r"_param_0]; "
      r"cp.async.cg.shared.global [1024], [at], 16; } ret;"), "two copies to one place"),
    ("a copy that goes on when its block ends", STAY, r"\tret;",
     (r"{ .reg .pred one; .reg .b32 me; .reg .b64 at; mov.u32 me, %tid.x; setp.eq.s32 one, me, 5; "
      r"ld.param.u64 at, [gpucast_" + STAY + r"_param_0]; bar.sync 0; "
      r"@one cp.async.cg.shared.global [1024], [at], 16; } ret;"), "copies to shared memory are under way"),
    ("a copy at an odd address", STAY, r"(cp\.async\.cg\.shared\.global \[%r\d+\], \[%rd\d+)\]", r"\1+8]",
     "misaligned for 16 bytes"),
    ("a copy from shared memory", STAY, r"(cp\.async\.cg\.shared\.global \[(%r\d+)\], \[)(%rd\d+)\]",
     r"cvt.u64.u32 \3, \2; \1\3]", "not in global memory: an address of shared memory"),
    ("a copy to global memory", STAY, r"cp\.async\.cg\.shared\.global \[(%r\d+)\], \[(%rd\d+)\]",
     r"cvt.u32.u64 \1, \2; cp.async.cg.shared.global [\1], [\2]", "outside of shared memory"),
    ("a copy over what another thread has", STAY,
     r"(?s)bar\.sync \t0;(.*)(cp\.async\.cg\.shared\.global )\[(%r\d+)\]([^;]*;)",
     r"\1{ .reg .b32 other; xor.b32 other, \3, 16; \2[other]\4 }", "copies to what another thread"),
    ("a copy past the end", STAY, r"(cp\.async\.cg\.shared\.global \[%r\d+\], \[%rd\d+)\]", r"\1+1048576]",
     "outside of the arrays"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "pattern", "new", "words"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_a_planted_fault_stops(kernel: str, pattern: str, new: str, words: str) -> None:
    planted: list[str] = []

    def plant(name: str, text: str) -> str:
        if not name.endswith(kernel):
            return text
        changed, count = re.subn(pattern, new, text, count=1)
        assert count == 1, f"the kernel no longer has {pattern!r}: plant another fault"
        planted.append(name)
        return changed

    with installed(PtxDriver("sm_90", plant)), pytest.raises(Fault, match=re.escape(words)):
        CALLS[kernel]()
    assert planted


@pytest.mark.parametrize("kernel", CALLS)
def test_without_a_fault_nothing_stops(kernel: str) -> None:
    with installed(PtxDriver("sm_90")):
        CALLS[kernel]()


#: A user's kernel with a function of ours, shared and local memory.
_KERNEL = """
extern "C" __global__ void users(const float* x, unsigned char* y, int n) {
    __shared__ float reversed[64];
    int lane[4];
    for (int i = 0; i < 4; ++i) lane[(threadIdx.x + i) & 3] = i * n;
    reversed[63 - threadIdx.x] = threadIdx.x < n ? x[threadIdx.x] : 0;
    __syncthreads();
    const float value = reversed[threadIdx.x] + lane[threadIdx.x & 3];
    if (threadIdx.x < n) y[threadIdx.x] = gpucast_float32_to_float8e4m3fn(value);
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a"])
@pytest.mark.parametrize("offset", [0, 4])
def test_a_function_in_a_kernel_of_a_user(arch: str, offset: int) -> None:
    text = gpucast.device_functions([("FLOAT", "FLOAT8E4M3FN")]) + _KERNEL
    x, y = upload(X[0, :50], offset=offset), device_array((50,), np.uint8, offset=1)
    driver = PtxDriver(arch)
    driver.launch(text, "users", 64, [x.data.ptr, y.data.ptr, np.int32(50)], 1)
    row = np.concatenate([X[0, :50], np.zeros(14, np.float32)])[::-1][:50]
    # lane[k] holds i * n where (threadIdx.x + i) & 3 == k: at threadIdx.x & 3 it is 0.
    assert elements(y).tobytes() == gpucast.cast(row, "FLOAT8E4M3FN").tobytes()


def test_a_kernel_of_a_user_that_races_stops() -> None:
    text = gpucast.device_functions([("FLOAT", "FLOAT8E4M3FN")]) + _KERNEL.replace("__syncthreads();", "")
    x, y = upload(X[0, :50]), device_array((50,), np.uint8)
    with pytest.raises(Fault, match="a race on shared memory"):
        PtxDriver("sm_90").launch(text, "users", 64, [x.data.ptr, y.data.ptr, np.int32(50)], 1)
