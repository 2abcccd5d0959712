# SPDX-License-Identifier: Apache-2.0
"""Tries the model of `bench.static.model` against speeds that others have published for kernels of their own.

Each kernel is written here as its source describes it, compiled, and estimated as ours are. A published figure is a
share of the speed of a copy: of the bandwidth in `GPUS`. Where the estimate is off, the reason is given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.static.kernels import StaticKernel, compiled, facts
from bench.static.model import GPU, GPUS, Estimate, estimate
from gpucast.codegen.cast_kernel import kernel_source
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve

#: How far an estimate may be from the published share.
CLOSE = 0.10

_TEXT = """
extern "C" __global__ void __launch_bounds__({threads})
    {name}(const {src}* src, {dst}* dst, long long n) {{
    const long long i = blockIdx.x * (long long){threads} + threadIdx.x;
    {body}
}}
"""
#: One element per turn, as CuPy's and CUB's loops without vectors.
_SCALAR = '_Pragma("unroll 1") for (long long j = i; j < n; j += gridDim.x * 256ll) dst[j] = src[j] * 3;'
_VECTORS = """const uint4* from = reinterpret_cast<const uint4*>(src) + 2 * blockIdx.x * 256 + threadIdx.x;
    uint4* to = reinterpret_cast<uint4*>(dst) + 2 * blockIdx.x * 256 + threadIdx.x;
    uint4 a = from[0], b = from[256];
    a.x *= 3, a.y *= 3, a.z *= 3, a.w *= 3, b.x *= 3, b.y *= 3, b.z *= 3, b.w *= 3;
    to[0] = a, to[256] = b;"""
#: PyTorch's vectors of 16 bytes of the result, eight elements a thread.
_HALVES = """const float4* from = reinterpret_cast<const float4*>(src) + 2 * i;
    const float4 a = from[0], b = from[1];
    uint4 c;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(c.x) : "f"(a.y), "f"(a.x));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(c.y) : "f"(a.w), "f"(a.z));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(c.z) : "f"(b.y), "f"(b.x));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(c.w) : "f"(b.w), "f"(b.z));
    reinterpret_cast<uint4*>(dst)[i] = c;"""
_FLOATS = """const uint4 a = reinterpret_cast<const uint4*>(src)[i];
    float4* to = reinterpret_cast<float4*>(dst) + 2 * i;
    const unsigned words[4] = {a.x, a.y, a.z, a.w};
    float d[8];
    for (int j = 0; j < 4; ++j) {
        d[2 * j] = __uint_as_float(words[j] << 16);
        d[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000);
    }
    to[0] = make_float4(d[0], d[1], d[2], d[3]);
    to[1] = make_float4(d[4], d[5], d[6], d[7]);"""
#: Sixteen codes a thread, converted and scaled, as Triton's blocked layout has them.
_SCALED = """const uint4 a = reinterpret_cast<const uint4*>(src)[i];
    const float scale = reinterpret_cast<const float*>(n)[i >> 1];
    float4* to = reinterpret_cast<float4*>(dst) + 4 * i;
    const unsigned words[4] = {a.x, a.y, a.z, a.w};
    for (int j = 0; j < 4; ++j) {
        float d[4];
        asm("{.reg .b16 x, y, p, q, r, s; .reg .b32 u, v; mov.b32 {x, y}, %4; cvt.rn.f16x2.e4m3x2 u, x;"
            "cvt.rn.f16x2.e4m3x2 v, y; mov.b32 {p, q}, u; mov.b32 {r, s}, v; cvt.f32.f16 %0, p; cvt.f32.f16 %1, q;"
            "cvt.f32.f16 %2, r; cvt.f32.f16 %3, s;}" : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(words[j]));
        to[j] = make_float4(d[0] * scale, d[1] * scale, d[2] * scale, d[3] * scale);
    }"""
#: What was loaded in bulk to shared memory, stored an element at a time.
_FROM_SHARED = """extern __shared__ unsigned short held[];
    unsigned short* to = dst + blockIdx.x * 2048ll + threadIdx.x;
    for (int j = 0; j < 8; ++j) to[256 * j] = held[256 * j + threadIdx.x] * 3;"""


@dataclass(frozen=True)
class PublishedKernel:
    what: str
    source: str
    gpu: str
    #: The published share of the speed of a copy.
    share: float
    src: str
    dst: str
    #: The C++ types of a pointer to either.
    types: tuple[str, str]
    body: str
    elements: int
    threads: int = 256
    #: Why the estimate is more than `CLOSE` from the published share; "" where it is not.
    reason: str = ""

    def kernel(self) -> StaticKernel:
        arch = f"sm_{self.on.capability}"
        source = kernel_source(resolve(dtype(self.src), dtype(self.dst)))
        text = _TEXT.format(
            name=source.name, threads=self.threads, src=self.types[0], dst=self.types[1], body=self.body
        )
        made = replace(source, prelude="", structs=(), kernel=text, elements=self.elements, threads=self.threads)
        return facts(made, arch, compiled([made], arch)[0])

    @property
    def on(self) -> GPU:
        return next(gpu for gpu in GPUS if gpu.name == self.gpu)

    def estimate(self) -> Estimate:
        return estimate(self.kernel(), self.on)


_BYTE, _SHORT, _WORD = ("unsigned char",) * 2, ("unsigned short",) * 2, ("unsigned",) * 2
PUBLISHED = (
    PublishedKernel("int8, a loop of single elements", "NVIDIA/cccl 2086: 1.03 TB/s", "H200", 1.03 / 4.20,
                    "UINT8", "UINT8", _BYTE, _SCALAR, 1),
    PublishedKernel("float64", "NVIDIA/cccl 2396: 4.26 TB/s", "H200", 1.0,
                    "DOUBLE", "DOUBLE", _WORD, _VECTORS, 4),
    PublishedKernel("float32 to float16, PyTorch's vectors", "pytorch 137053: 92 % of the PCIe board's peak",
                    "H100", 1.0, "FLOAT", "FLOAT16", ("float", "unsigned short"), _HALVES, 8, 128),
    PublishedKernel("bfloat16 to float32, PyTorch's vectors", "pytorch 195542: 1.25 TB/s", "A100", 1.25 / 1.80,
                    "BFLOAT16", "FLOAT", ("unsigned short", "float"), _FLOATS, 8, 128,
                    "the source does not say which A100: of the model with 40 GB this is 90 % of what copies reach"),
    PublishedKernel("float8e4m3fn to float32 with scales, Triton", "triton 11644: 2.5 TB/s", "H100", 2.5 / 2.90,
                    "FLOAT8E4M3FN", "FLOAT", ("unsigned char", "float"), _SCALED, 16, 128,
                    "Triton's machine code is not at hand: its addresses of tiles and scales are not in the estimate"),
    PublishedKernel("float32, CUB's transform", "NVIDIA/cccl 9481: 92.3 % of the peak", "B200", 1.0,
                    "UINT32", "UINT32", _WORD, _VECTORS, 8),
    PublishedKernel("float16, CUB's transform", "NVIDIA/cccl 9210: 89.0 % of the peak", "B200", 0.963,
                    "UINT16", "UINT16", _SHORT, _VECTORS, 16),
    PublishedKernel("bfloat16, loaded in bulk and stored singly", "NVIDIA/cccl 9481: 68.8 % of the peak", "B200", 0.744,
                    "UINT16", "UINT16", _SHORT, _FROM_SHARED, 8, 256,
                    "the wait for bulk copies, block by block, is not in the machine code that is counted"),
)  # fmt: skip


def problems(one: PublishedKernel, found: Estimate) -> list[str]:
    """An estimate that is off without a reason, or a reason for one that is not; usually none."""
    off = abs(found.share - one.share)
    if bool(one.reason) == (off > CLOSE):
        return []
    return [f"{one.what}: estimated {100 * found.share:.0f} %, published {100 * one.share:.0f} % of a copy"]


def report() -> list[str]:
    """Prints a line for each kernel; returns the problems."""
    failures = []
    for one in PUBLISHED:
        found = one.estimate()
        reason = f"; {one.reason}" if one.reason else ""
        print(f"{one.gpu} {one.what} ({one.source}): published {100 * one.share:.0f} %, {found}{reason}")
        failures += problems(one, found)
    return failures
