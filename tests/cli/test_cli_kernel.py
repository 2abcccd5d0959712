# SPDX-License-Identifier: Apache-2.0
"""`gpucast kernel` and `gpucast warmup`: kernels for any architecture, on a machine without a GPU."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from bench import cubin
from gpucast import dtype
from gpucast.cli import main
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import Options, resolve
from gpucast.kernel import compiler, disassembler, nvidia
from gpucast.kernel.fused_kernel import FusedOps, cast_kernel, fused_kernel
from gpucast.mixed import DelayedScaling, DynamicLossScale, select_tree
from gpucast.warmup.compile_ahead import CompileTask, warmup
from gpucast.warmup.compile_ahead import tasks as listed_tasks
from gpucast.warmup.request import WarmupRequest
from host_driver import Quiet, installed, upload
from nvrtc_wheels import INSTALLED, load

NAME = "gpucast_float32_to_float8e4m3fn"
TEXT = cast_kernel(resolve(dtype("float32"), dtype("float8e4m3fn"))).text


def tasks(pairs: Any, arch: Any, **options: Any) -> list[CompileTask]:
    """What `warmup` would compile, by its keywords."""
    flags = {name: options.pop(name) for name in WarmupRequest.__dataclass_fields__ if name in options}
    return listed_tasks(WarmupRequest(pairs, attributes=options, **flags), arch)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a GPU, with an empty cache; the folder of its kernels."""
    load(INSTALLED[0])
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(nvidia, "find", lambda: None)
    # Other tests keep the copy of NVRTC that was chosen first.
    monkeypatch.setattr(compiler, "_compiler", functools.lru_cache(compiler._compiler.__wrapped__))
    return tmp_path / "cache" / "kernels"


def kernel(capsysbinary: pytest.CaptureFixture[bytes], *options: str) -> bytes:
    code = main(["kernel", "FLOAT", "float8_e4m3fn", *options])
    printed = capsysbinary.readouterr()
    assert printed.err == b""
    assert code == 0
    return printed.out


def test_the_text(capsysbinary: pytest.CaptureFixture[bytes], machine: Path) -> None:
    assert kernel(capsysbinary) == kernel(capsysbinary, "--emit", "source") == TEXT.encode()
    # No compiler was needed.
    assert not machine.exists()
    attributes = ["--no-saturate", "--shape", "strided"]
    rule = resolve(dtype("float32"), dtype("float8e4m3fn"), Options(saturate=False))
    assert kernel(capsysbinary, *attributes) == cast_kernel(rule, "strided").text.encode()
    assert main(["kernel", "INT4", "INT8", "--unpacked", "--overflow", "saturate"]) == 0
    assert b"gpucast_int4_to_int8_saturate_unpacked" in capsysbinary.readouterr().out
    rule = resolve(dtype("float32"), dtype("float8e4m3fn"), Options(rounding="stochastic"))
    assert kernel(capsysbinary, "--rounding", "stochastic") == fused_kernel(rule, FusedOps()).text.encode()


def test_ptx_cubin_and_machine_code(capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    ptx = kernel(capsysbinary, "--emit", "ptx", "--arch", "sm_90").decode()
    assert f".entry {NAME}(" in ptx
    assert ".target sm_90\n" in ptx
    assert "\0" not in ptx
    code = kernel(capsysbinary, "--emit", "cubin", "--arch", "9.0")
    assert code == compiler.compile(TEXT, NAME, "sm_90").code
    assert list(cubin.kernels(code)) == [NAME]
    file = tmp_path / "kernel.cubin"
    assert kernel(capsysbinary, "--emit", "cubin", "--arch", "sm_90", "-o", str(file)) == b""
    assert file.read_bytes() == code
    for arch in ("sm_75", "sm_100a", "sm_120"):
        sass = kernel(capsysbinary, "--emit", "sass", "--arch", arch).decode()
        assert f".text.{NAME}" in sass
        assert " EXIT " in sass or " EXIT;" in sass
        # No local memory.
        assert " STL" not in sass
        assert " LDL" not in sass


def test_the_gpu_of_this_machine(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvidia.DriverInfo((13, 0), ("cuda:0 A100", "cuda:1 B200"), capabilities=((8, 0), (10, 0)))
    monkeypatch.setattr(nvidia, "find", lambda: found)
    assert b".target sm_80\n" in kernel(capsysbinary, "--emit", "ptx")
    assert {task.arch for task in tasks([("FLOAT", "INT8")], None)} == {"sm_80", "sm_100a"}


def test_without_a_disassembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """nvdisasm is looked for in the wheel, on PATH and in a toolkit; the message says where to get it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "toolkit"))
    if not Path("/usr/local/cuda/bin/nvdisasm").exists():
        with pytest.raises(disassembler.DisassemblerMissing, match="run: pip install nvidia-cuda-nvdisasm"):
            disassembler.find()
    for place in ("toolkit/bin", "bin", "packages/nvidia/cu13/bin"):
        tool = tmp_path / place / "nvdisasm"
        tool.parent.mkdir(parents=True)
        tool.write_text("#!/bin/sh\necho no such chip >&2; exit 1\n")
        tool.chmod(0o755)
        assert disassembler.find() == str(tool)
    with pytest.raises(ValueError, match="cannot read this cubin: no such chip; a newer one may: pip install -U"):
        disassembler.disassemble(b"cubin")


def test_warmup_compiles_what_a_cast_launches(machine: Path) -> None:
    count = warmup([("FLOAT", "FLOAT8E4M3FN"), (dtype("uint4"), "int8"), ("FLOAT", 17)], ["sm_90", "sm_75"])
    assert count == 2 * (2 + 4)
    kept = compiler.compiler().cache.usage()[0]
    # A plan that is made later finds its kernel in the cache, for any shape and packing.
    for src, dst in (("FLOAT", "FLOAT8E4M3FN"), ("UINT4", "INT8")):
        rule = resolve(dtype(src), dtype(dst))
        for unpacked in (False, True):
            source = cast_kernel(rule, "strided", unpacked=unpacked)
            assert compiler.compile_for(source.text, source.name, (9, 0))
    assert compiler.compiler().cache.usage()[0] == kept
    assert warmup([("FLOAT", "INT8")], "sm_90", overflow="saturate") == 2
    assert compiler.compiler().cache.usage()[0] == kept + 2


def test_warmup_of_fused_casts(machine: Path) -> None:
    def names(**options: Any) -> set[str]:
        work = tasks([("FLOAT", "FLOAT8E4M3FN"), ("FLOAT8E4M3FN", "FLOAT8E4M3FN")], "sm_90", **options)
        return {task.kernel.name for task in work}

    def shapes(*casts: str) -> set[str]:
        return {f"gpucast_{cast}{shape}" for cast in casts for shape in ("", "_strided")}

    there, same = "float32_to_float8e4m3fn", "float8e4m3fn_to_float8e4m3fn"
    assert names(amax=True) == shapes(f"{there}_amax", f"{same}_amax")
    assert names(scale=True) == shapes(*(f"{cast}_scaled{wide}" for cast in (there, same) for wide in ("", "_wide")))
    # A cast from a type to itself rounds nothing, but its products with a scale are rounded.
    assert names(rounding="stochastic") == shapes(f"{there}_stochastic", same)
    scaled = {name for name in names(rounding="stochastic", scale=True, amax=True) if "wide" not in name}
    assert scaled == shapes(f"{there}_stochastic_scaled_amax", f"{same}_stochastic_scaled_amax")
    assert warmup([("FLOAT", "BFLOAT16")], "sm_90", rounding="stochastic") == 2
    kept = compiler.compiler().cache.usage()[0]
    source = fused_kernel(resolve(dtype("FLOAT"), dtype("BFLOAT16"), Options(rounding="stochastic")), FusedOps())
    assert compiler.compile_for(source.text, source.name, (9, 0))
    assert compiler.compiler().cache.usage()[0] == kept


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_axis", "float8e4m3fn_128x128", "float8e4m3fn_tensor"])
def test_warmup_knows_the_kernels_of_quantize(name: str) -> None:
    """Every kernel that is launched for matrices with complete or ragged blocks is in the list. Nothing is computed."""
    quiet = Quiet()
    with installed(quiet):
        for shape in ((256, 384), (7, 5), (3, 128, 256)):
            for transpose in (False, True, "both"):
                for kind in (np.float32, np.float16):
                    q = gpucast.quantize(upload(np.ones(shape, kind)), name, transpose=transpose)
                    for one in q if transpose == "both" else (q,):
                        one.dequantize()
                        one.dequantize(kind)
    listed = {task.kernel.name for task in tasks((), "sm_90", quantize=[name])}
    casts = {launched for launched, _ in quiet.loaded if not launched.startswith("gpucast_quantize")}
    assert {launched for launched, _ in quiet.loaded} - casts <= listed
    assert all("_strided" in cast or "_transposed" in cast for cast in casts), "x is copied first, at most"


def test_warmup_knows_the_kernels_of_training() -> None:
    """As above, of Hadamard transforms, groups, and global scales for each row."""
    quiet, wanted, ends = Quiet(), ["nvfp4", "nvfp4_4over6"], upload(np.int32([3, 256]))
    with installed(quiet):
        for kind in (np.float32, np.float16):
            x, of_rows = upload(np.ones((256, 384), kind)), upload(np.ones(256, np.float32))
            for name, transpose, layout in itertools.product(wanted, (False, True, "both"), ("linear", "128x4")):
                q = gpucast.quantize(x, name, transpose=transpose, hadamard=16, scale_layout=layout)
                for one in q if transpose == "both" else (q,):
                    one.dequantize(kind, hadamard=16)
            for name in ("nvfp4", "float8e4m3fn_1x128"):
                gpucast.quantize(x, name, transpose="both", hadamard=(None, 16))
            for axis in (0, 1):
                gpucast.hadamard(x, 16, axis=axis)
            for name in wanted:
                gpucast.quantize(x, name, amax=of_rows).dequantize(kind)
                gpucast.quantize(x, name, amax=of_rows, scale_layout="128x4")
                gpucast.quantize(x, name, amax=of_rows[:1])
            gpucast.quantize(upload(np.ones((256, 40), kind)), "nvfp4", amax=of_rows).dequantize()
            gpucast.quantize_grouped(x, ends, "nvfp4", scale=1.0)
            gpucast.cast_grouped(x, ends, "FLOAT8E4M3FN", scale=1.0)
    pairs = [(kind, "FLOAT8E4M3FN") for kind in ("FLOAT", "FLOAT16")]
    more = {"grouped": True, "hadamard": 16}
    work = tasks(pairs, "sm_90", quantize=["nvfp4"], row_scaled=True, **more)
    work += tasks((), "sm_90", quantize="nvfp4_4over6", row_scaled=True, hadamard=[16])
    work += tasks((), "sm_90", quantize="float8e4m3fn_1x128", hadamard=16)
    listed = {task.kernel.name for task in work}
    ours = ("gpucast_quantize", "gpucast_hadamard", "gpucast_cast_groups")
    assert {name for name, _ in quiet.loaded if name.startswith(ours)} <= listed
    with pytest.raises(ValueError, match="warmup: int8_axis has no blocks of 16"):
        tasks((), "sm_90", quantize="int8_axis", grouped=True)
    for names, message in (
        ((), "quantize= names none"),
        ("mxfp8e4m3", "amax= is for formats with a global scale"),
    ):
        with pytest.raises(ValueError, match=f"warmup: .*{message}"):
            tasks((), "sm_90", quantize=names, row_scaled=True)


def test_warmup_knows_the_kernels_of_mixed() -> None:
    """The list is exactly the kernels that a training step launches for gradients of one type. Nothing runs."""
    quiet = Quiet()
    with installed(quiet):
        for kind in ("float32", "float16", "bfloat16"):
            one, wide = (upload(np.ones((6, 5), dtype(kind).numpy)) for _ in range(2))
            scale = DynamicLossScale()
            # A tree with more arrays than a short list of arguments holds.
            for grads in ([one], [one.T[::2]], [one, wide], [one] * 200):
                scale.scale(grads[0])
                new, finite = scale.unscale(grads)
                scale.adjust(finite)
                select_tree(finite, new, new)
            assert scale.adjust(True).loss_scale.dtype == np.float32
        scaling = DelayedScaling("FLOAT8E4M3FN")
        for kind in ("float32", "float16", "bfloat16"):
            scaling.cast(upload(np.ones((6, 5), dtype(kind).numpy)))
        scaling.update()
    work = tasks(None, "sm_90", mixed=True)
    listed = [task.kernel.name for task in work]
    assert len(listed) == len(set(listed))
    # An array that is not contiguous is copied before the choice.
    assert {name for name, _ in quiet.loaded} == {*listed, "gpucast_float32_to_float32_strided"}
    assert len(tasks([("FLOAT", "INT8")], "sm_90", mixed=True)) == len(listed) + 2


@pytest.mark.parametrize(
    ("pairs", "arch", "attributes", "error", "words"),
    [
        ([("FLOAT", "STRING")], "sm_90", {}, ValueError, "warmup: FLOAT to STRING has no kernel"),
        ([("FLOAT", "float7")], "sm_90", {}, TypeError, "warmup: .*float7"),
        ([("FLOAT", "INT8")], "sm_91", {}, ValueError, "'sm_91' is not an architecture"),
        ([("FLOAT", "INT8")], None, {}, DeviceUnavailable, "warmup: no architecture is given, and there is no NVIDIA"),
        ([("FLOAT", "INT8")], "sm_90", {"opset": 0}, ValueError, "warmup: opset=0"),
        ([("FLOAT", "INT8")], "sm_90", {"scale": 0.5}, TypeError, "warmup: scale=0.5 must be True or False"),
        ([("FLOAT", "INT8")], "sm_90", {"rounding": "stochastic"}, ValueError, "warmup: rounding='stochastic' does"),
        ([("FLOAT", "INT8")], "sm_90", {"many": 1}, TypeError, "warmup: many=1 must be True or False"),
        (None, "sm_90", {"mixed": "yes"}, TypeError, "warmup: mixed='yes' must be True or False"),
        ([("FLOAT", "INT8")], "sm_90", {"seed": 1}, TypeError, "warmup: seed= is not known here"),
        (("FLOAT", "INT8"), "sm_90", {}, TypeError, r"warmup: pairs has 'FLOAT'; expected \(source, destination\)"),
        ([("FLOAT", "INT8")], 90, {}, TypeError, "warmup: arch=90 must be a text such as 'sm_90'"),
        ((), "sm_90", {"quantize": "mxfp5"}, ValueError, "warmup: format='mxfp5' is not known"),
        ((), "sm_90", {"quantize": ["mxfp5"]}, ValueError, "warmup: format='mxfp5' is not known"),
        (
            (),
            "sm_90",
            {"quantize": ["nvfp4", "int8_32"], "rounding": "stochastic"},
            ValueError,
            "warmup: rounding='stochastic' is for elements that are floats; int8_32 has INT8",
        ),
        ([("STRING", "INT8")], "sm_90", {"amax": True}, ValueError, "warmup: STRING to INT8 has no kernel"),
    ],
)
def test_wrong_use_of_warmup(pairs: Any, arch: Any, attributes: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        warmup(pairs, arch, **attributes)


def command(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "gpucast", "warmup", *options],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_the_warmup_command(machine: Path) -> None:
    done = command(
        "--pair", "FLOAT:FLOAT8E4M3FN", "--pair", "INT4:16", "--arch", "90", "--arch", "sm_75", "--jobs", "2"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("12 kernels for sm_90, sm_75 in ")
    assert f"; {machine} holds " in done.stdout
    assert " of 256 MiB\n" in done.stdout
    before = set(machine.iterdir())
    assert len(before) >= 12
    # In a process of its own: this one may hold another NVRTC, which other tests loaded.
    silent = command("--pair", "FLOAT:FLOAT8E4M3FN", "--arch", "sm_90", "--jobs", "1", "--quiet")
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    assert set(machine.iterdir()) == before
    # Four pairs, of which the two from INT4 are warmed for PackedArrays and for arrays of one element per byte. Between
    # two PackedArrays there are no strides.
    among = command("--types", "FLOAT8E4M3FN", "int4", "--arch", "8.0")
    assert (among.returncode, among.stderr) == (0, "")
    assert among.stdout.startswith("11 kernels for sm_80 in ")
