# SPDX-License-Identifier: Apache-2.0
"""The gate on machine code: a share of all kernels passes it, and each fault that it is for is found."""

from __future__ import annotations

import dataclasses

import pytest

from bench.static import gate
from bench.static.catalog import all_kernels
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.kernel.fused_kernel import cast_kernel

ARCHITECTURES = ("sm_80", "sm_90", "sm_100a")
#: One in so many of the kernels listed, another share for each family; and one in so many of all with --exhaustive,
#: which tries each on all architectures.
SAMPLES = {"": (600, 500), "_transform_|_tiles|4over6": (300, 100), "_groups_": (20, 5)}
_SHARED, _READ = "__shared__ float s[64];", "__syncthreads(); y[1] = s[threadIdx.x ^ 1];"
_STORE = 'asm volatile("st.global.f32 [%0], %1;" :: "l"(s + threadIdx.x), "f"(1.0f));'
#: Bodies of kernels with a fault, and what the gate says. `x` is the source, `y` the result.
FAULTS = {
    "a shared address in a generic register": (
        f"{_SHARED} float* p = n > 7 ? s : (float*)y; p[threadIdx.x] = x[0]; {_READ}",
        "make generic addresses of shared memory",
    ),
    "global stores to shared memory": (
        f"{_SHARED} {_STORE} {_READ}",
        "make generic addresses of shared memory",
    ),
    "an array with indices of the data": (
        "unsigned char t[64]; for (int i = 0; i < 64; ++i) t[i] = x[i]; y[0] = t[x[64] & 63];",
        "bytes of local memory",
    ),
    "a variable that nothing uses": ("int left; y[0] = x[0];", "the compiler says: "),
}


@pytest.mark.parametrize(("only", "own"), list(zip(SAMPLES, ARCHITECTURES, strict=True)))
def test_a_share_of_all_kernels_passes(only: str, own: str, exhaustive: bool) -> None:
    kernels = all_kernels(SAMPLES[only][exhaustive], only)
    assert len(kernels) > 3
    for arch in ARCHITECTURES if exhaustive else [own]:
        found = gate.gate(kernels, arch, 1)
        assert len(found) == len(kernels)
        assert [problem for one in found for problem in one.problems()] == []


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_fault_is_found(arch: str) -> None:
    sound = cast_kernel(resolve(dtype("FLOAT"), dtype("INT8")))
    head = f'extern "C" __global__ void {sound.name}(const unsigned char* x, unsigned, unsigned char* y, long long n)'
    assert gate.of([sound], arch)[0].problems() == []
    for name, (body, said) in FAULTS.items():
        (one,) = gate.of([dataclasses.replace(sound, line=f"{head} {{ {body} }}\n")], arch)
        assert any(said in problem for problem in one.problems()), (name, one)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate.main(["--arch", "sm_90", "--only", "^gpucast_adjust_loss_scale$", "--jobs", "1"]) == 0
    assert "sm_90: 1 kernels: 0 with shared through generic, 0 with local memory" in capsys.readouterr().out
