# SPDX-License-Identifier: Apache-2.0
"""Fuse a cast into a kernel of your own: scale float32 values and store them as FLOAT8E4M3FN, in one pass over memory.

On a GPU the codes are compared with those of a scaling and a cast one after the other, and both are timed. Without one
the kernel is compiled for an architecture, which takes the compiler (NVRTC), but no GPU.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import gpucast
from gpucast.kernel import compiler

FUNCTION = gpucast.device_function("FLOAT", "FLOAT8E4M3FN")
SCALED_CAST = "code = gpucast_float32_to_float8e4m3fn(x * scale)"
SCALE = np.float32(0.25)

#: The same as a kernel of its own, as CuPy's RawKernel takes it.
KERNEL = f"""\
extern "C" __global__ void scaled_cast(const float* xs, float scale, unsigned char* codes, unsigned n) {{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = xs[i];
    unsigned char code;
    {SCALED_CAST};
    codes[i] = code;
}}
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90", help="to compile for without a GPU (default: %(default)s)")
    arch = parser.parse_args(argv).arch
    problem = gpucast.device.unavailable()
    if problem is None:
        return run()
    print(f"No GPU: {problem[0]}. The kernel is compiled, but not run.\n")
    return show(arch)


def run() -> int:
    import cupy
    from cupyx.profiler import benchmark

    fused = cupy.ElementwiseKernel(
        "float32 x, float32 scale", "uint8 code", SCALED_CAST, "scaled_cast", preamble=FUNCTION
    )
    x = cupy.asarray(np.random.default_rng(0).standard_normal(1 << 24, np.float32) * 1000)

    def in_two_passes() -> object:
        return gpucast.cast(x * SCALE, "FLOAT8E4M3FN")

    codes, wanted = cupy.asnumpy(fused(x, SCALE)), cupy.asnumpy(in_two_passes())
    different = np.count_nonzero(codes != wanted.view(np.uint8))
    print(f"{x.size:,} elements, {different} differ from gpucast.cast")
    for name, call in (("scale, then cast", in_two_passes), ("fused", lambda: fused(x, SCALE))):
        microseconds = 1e6 * np.median(benchmark(call, n_repeat=100).gpu_times)
        print(f"{name:18}{microseconds:9.1f} us")
    return int(different > 0)


def show(arch: str) -> int:
    try:
        code = compiler.compile(FUNCTION + KERNEL, "scaled_cast", compiler.compiler().parse(arch)).code
    except (gpucast.DeviceUnavailable, ValueError) as error:
        print(f"fused_cast: {error}", file=sys.stderr)
        return 1
    at = FUNCTION.index("gpucast_float32_to_float8e4m3fn(")
    print(FUNCTION[FUNCTION.rindex("__device__ ", 0, at) : FUNCTION.index("\n}\n", at) + 3])
    print(KERNEL)
    print(f"{len(code):,} bytes for {arch}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
