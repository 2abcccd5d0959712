# SPDX-License-Identifier: Apache-2.0
"""How the extension module is built: by every compiler of this machine, without a warning; and how it fails."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.host import build
from gpucast.kernel.host_units import cast_unit
from gpucast.reference import exact_cast

#: The best first; a processor runs those from its own on.
LEVELS = list(build.LEVELS[build._MACHINE])
ZIG = importlib.util.find_spec("ziglang")
COMPILERS = {name: [name] for name in ("g++", "clang++") if shutil.which(name)}
if ZIG is not None and ZIG.origin is not None:
    COMPILERS["zig"] = [sys.executable, str(Path(ZIG.origin).with_name("__main__.py")), "c++"]


@pytest.mark.skipif(not COMPILERS, reason="there is no C++ compiler")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_compiler_builds_a_unit_without_a_warning(compiler: str, level: str, tmp_path: Path) -> None:
    rule = resolve(dtype("FLOAT"), dtype("FLOAT8E4M3FN"))
    unit = cast_unit("some", [rule, resolve(dtype("FLOAT16"), dtype("FLOAT")), resolve(dtype("DOUBLE"), dtype("INT8"))])
    version = subprocess.run([*COMPILERS[compiler], "--version"], capture_output=True, text=True, check=True).stdout
    own = build._CLANG_FLAGS if "clang" in version else build._GCC_FLAGS
    text, made = tmp_path / "unit.cpp", tmp_path / "unit.so"
    text.write_text(f"{unit.text}extern \"C\" __attribute__((visibility(\"default\"))) void f(const void* a, void* b, "
                    f"unsigned long long n) {{ {rule.function}(a, b, n); }}\n")  # fmt: skip
    name = level.replace("-", "_") if compiler == "zig" else level
    option = f"-mcpu={name}" if compiler == "zig" else f"-march={name}"
    flags = [
        *build._FLAGS,
        *own,
        *build._UNSANITIZED,
        option,
        "-Dgpucast=gpucast_t",
        "-DGPUCAST_ENTRIES=entries_t",
        "-shared",
    ]
    subprocess.run([*COMPILERS[compiler], *flags, "-o", str(made), str(text)], check=True)
    if level not in LEVELS[LEVELS.index(*build.native_levels()) :]:
        return
    x = np.random.default_rng(1).integers(0, 1 << 32, 5000, np.uint32)
    out = np.empty(x.size, np.uint8)
    ctypes.CDLL(str(made)).f(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(x.size))
    assert np.array_equal(out, exact_cast.apply(x.view(np.float32), rule).view(np.uint8))


def test_a_build_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the compiler's own words, here and in what later processes read; the next one that works takes that away."""
    compiler = tmp_path / "broken c++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\necho no room on mars >&2; exit 3\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{compiler}'")
    monkeypatch.setenv("GPUCAST_BUILD_DIR", str(tmp_path / "objects"))
    monkeypatch.delenv("GPUCAST_NO_HOST", raising=False)
    monkeypatch.setattr(build, "MISSING", tmp_path / "_host_missing.txt")
    monkeypatch.setattr(build, "_TARGET", tmp_path / "_host.abi3.so")
    assert build.main([]) == 1
    said = capsys.readouterr().err
    assert "no room on mars" in said and "-m gpucast.host.build" in said
    assert "no room on mars" in (tmp_path / "_host_missing.txt").read_text()
    assert build.main(["--levels", "x86-64-v9"]) == 1
    assert "levels x86-64-v9 are not known here; expected native, all or of " in capsys.readouterr().err
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.main([]) == 1
    assert "CXX='no-such-compiler' is not a command" in capsys.readouterr().err
    # Nothing is built where nothing is to be.
    monkeypatch.setenv("GPUCAST_NO_HOST", "1")
    assert build.main([]) == 1
    (tmp_path / "_host.abi3.so").touch()
    assert build.main([]) == 0
