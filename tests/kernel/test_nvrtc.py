# SPDX-License-Identifier: Apache-2.0
"""NVRTC itself: every byte of what it makes, every word of what it says, and no program left behind."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest

from bench import cubin
from gpucast.kernel.nvrtc import CompileError, Nvrtc
from nvrtc_wheels import INSTALLED, load

HALVE = 'extern "C" __global__ void halve(unsigned* x) { x[threadIdx.x] >>= 1; }\n'
#: float4 conversion, which only the a and f variants have.
FLOAT4 = """extern "C" __global__ void narrow(unsigned* x) {
    unsigned r;
    asm("{ .reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, %1, %2; cvt.u32.u8 %0, b; }" : "=r"(r) : "f"(1.f), "f"(2.f));
    *x = r;
}
"""
each_nvrtc = pytest.mark.parametrize("major", INSTALLED)


@each_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120"])
def test_a_cubin_is_whole(major: int, arch: str) -> None:
    compiled = load(major).compile(HALVE, "halve", arch)
    assert compiled.log == ""
    facts = cubin.kernels(compiled.code)
    assert list(facts) == ["halve"]
    assert facts["halve"].local == 0
    assert 0 < facts["halve"].registers <= 32
    assert facts["halve"].code > 0
    # CuPy's binding would have dropped this byte.
    with pytest.raises((AssertionError, ValueError)):
        cubin.whole(compiled.code[:-1])
    cubin.whole(compiled.code)


@each_nvrtc
@pytest.mark.parametrize("number", [75, 90, 120])
def test_ptx_ends_in_a_zero_byte(major: int, number: int) -> None:
    code = load(major).compile(HALVE, "halve", f"compute_{number}").code
    text = code.decode()
    assert text.endswith("\n\0")
    assert text.count("\0") == 1
    assert f".target sm_{number}\n" in text
    assert ".visible .entry halve(" in text


@each_nvrtc
def test_warnings_are_told(major: int) -> None:
    compiled = load(major).compile('extern "C" __global__ void k() { int unused; }', "k", "sm_90")
    assert 'k.cu(1): warning #177-D: variable "unused" was declared but never referenced' in compiled.log
    assert "\0" not in compiled.log


@each_nvrtc
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n\nint x = ;\n", ["name.cu(3): error: expected an expression", "int x = ;"]),
        ("#include <cuda_fp16.h>\n", ['could not open source file "cuda_fp16.h"']),
        (
            'template <int N> struct A { static_assert(N == 1, "é"); };\nA<2> a;',
            ["error: static assertion failed with"],
        ),
    ],
    ids=["syntax", "include", "assertion"],
)
def test_an_error_says_what_and_where(major: int, text: str, words: list[str]) -> None:
    with pytest.raises(CompileError) as caught:
        load(major).compile(text, "name", "sm_90")
    message = str(caught.value)
    assert message.startswith(f"compile: NVRTC {major}.")
    assert "cannot compile name for sm_90 (NVRTC_ERROR_COMPILATION)\n" in message
    for word in words:
        assert word in message
        assert word in caught.value.log


def test_an_error_comes_out_of_a_process_pool_as_it_was() -> None:
    """`gpucast warmup` compiles in processes; an error that cannot be unpickled would break the pool."""
    error = pickle.loads(pickle.dumps(CompileError("message", 6, "log")))
    assert (type(error), str(error), error.code, error.log) == (CompileError, "message", 6, "log")


@each_nvrtc
def test_wrong_options(major: int) -> None:
    with pytest.raises(CompileError, match=r"refused its options for sm_91: .*; it compiles for sm_.*sm_120"):
        load(major).compile(HALVE, "halve", "sm_91")
    with pytest.raises(CompileError, match="refused its options for sm_90: .*--no-such-option") as caught:
        load(major).compile(HALVE, "halve", "sm_90", ["--no-such-option"])
    assert "it compiles for" not in str(caught.value)
    with pytest.raises(ValueError, match="the text of halve holds a NUL character"):
        load(major).compile(HALVE + "\0", "halve", "sm_90")


class Counting:
    """NVRTC's library with its calls counted, and some of them made to fail."""

    def __init__(self, library: Any, failing: str = "") -> None:
        self.library, self.failing, self.calls = library, failing, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)
        if not name.startswith("nvrtc") or name == "nvrtcGetErrorString":
            return function

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            return 11 if name == self.failing else int(function(*arguments))

        return call


def test_no_program_is_left_behind() -> None:
    counting = Counting(load(INSTALLED[0])._library)
    nvrtc = Nvrtc(counting)
    nvrtc.compile(HALVE, "halve", "sm_90")
    nvrtc.accepts("sm_90")
    for text, arch in (("int x = ;", "sm_90"), (HALVE, "sm_91"), (FLOAT4, "sm_90")):
        with pytest.raises(CompileError):
            nvrtc.compile(text, "k", arch)
    assert counting.calls["nvrtcDestroyProgram"] == counting.calls["nvrtcCreateProgram"] >= 5
    for failing in ("nvrtcCompileProgram", "nvrtcGetProgramLogSize", "nvrtcGetCUBIN"):
        counting = Counting(load(INSTALLED[0])._library, failing)
        for use in (lambda nvrtc: nvrtc.compile(HALVE, "halve", "sm_90"), lambda nvrtc: nvrtc.accepts("sm_90")):
            with pytest.raises(RuntimeError, match="NVRTC_ERROR_INTERNAL_ERROR"):
                use(Nvrtc(counting))
        assert counting.calls["nvrtcDestroyProgram"] == counting.calls["nvrtcCreateProgram"] == 2
