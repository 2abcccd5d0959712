# SPDX-License-Identifier: Apache-2.0
"""NVRTC and the library of its builtins: copies that do not find it, have the wrong one, or are not alone.

Every case is a process of its own: the loader forgets nothing that was loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nvrtc_13_0
from bench import cubin
from gpucast.compile.nvrtc_files import builtins_name
from nvrtc_13_0 import link
from nvrtc_wheels import load, wheels

ROOT = Path(__file__).parents[2]
BUILTINS = "libnvrtc-builtins.so.13.0"
REMEDY = "run: pip install --force-reinstall 'nvidia-cuda-nvrtc==13.0.*'"
#: NVRTC 13 is to be taken whatever the driver of this machine runs.
ANY_DRIVER = "from gpucast.compile import nvidia as driver; driver.cuda_version = lambda: None"
COMMAND = f"import sys; from gpucast.cli import main; {ANY_DRIVER}; sys.exit(main())"
#: Compiles with each of the copies argv[1:], all of them loaded, and with each again.
SEVERAL = """
import sys
from gpucast.compile import nvrtc
copies = [nvrtc.load(path) for path in sys.argv[1:]]
for copy in 2 * copies:
    assert copy.compile('extern "C" __global__ void k() {}', "k", "sm_90").code[:4] == b"\\x7fELF"
    print(*copy.version, sep=".")
"""

#: Compiles a cast with the copy of NVRTC that is found, without any wheel but those in the folder argv[1].
CAST = """
import ctypes, os, sys
import gpucast.compile.cubin, gpucast.core.rule, gpucast.codegen.cast, importlib.metadata
from gpucast import DeviceUnavailable, dtype
from gpucast.compile import nvrtc_search
sys.path[:] = [sys.argv[1]]
{driver}
{before}
found = nvrtc_search.find()
compiler = gpucast.compile.cubin.compiler()
source = gpucast.codegen.cast.kernel_source(gpucast.core.rule.resolve(dtype("FLOAT"), dtype("FLOAT8E4M3FN")))
errors = []
for compile in (lambda: compiler.compile(source.text, source.name, "sm_90"), lambda: compiler.architecture((10, 0))):
    try:
        result = compile()
    except DeviceUnavailable as error:
        errors.append(str(error))
print(found.path or found.loaded.path, *compiler.version)
print(errors[0] if errors else result)
assert errors in ([], errors[:1] * 2), errors
"""


def run(code: str, *arguments: object, **environment: str) -> list[str]:
    """The lines that a new Python prints. The variables that lead to copies of NVRTC are not set unless given."""
    env = {name: value for name, value in os.environ.items() if name not in ("CUDA_PATH", "CUDA_HOME", "LD_PRELOAD")}
    env |= {"LD_LIBRARY_PATH": "", "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def cast(folder: Path, packages: Path | str = "", before: str = "", **environment: str) -> list[str]:
    """The lines of `CAST`: the copy that is used, and the architecture of 10.0 or the error."""
    return run(
        CAST.format(driver=ANY_DRIVER, before=before), packages, GPUCAST_CACHE_DIR=str(folder / "cache"), **environment
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One that is removed at once: a copy of NVRTC has a hundred megabytes where it cannot be linked."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def copy(folder: Path, builtins: Path | None = None) -> Path:
    """NVRTC 13.0.88 in a folder, alone or with that as its builtins."""
    if builtins is not None:
        link(builtins, folder / BUILTINS)
    return link(nvrtc_13_0.library(), folder / "libnvrtc.so.13")


def others() -> list[tuple[tuple[int, int], Path]]:
    """The versions of the other copies that are installed, and where their builtins are."""
    versions = {load(major).version: Path(path) for major, path in wheels().items()}
    found = [(version, path.with_name(builtins_name(version))) for version, path in versions.items()]
    assert any(version != (13, 0) for version, _ in found), (
        "another NVRTC is needed: pip install nvidia-cuda-nvrtc-cu12"
    )
    return [(version, path) for version, path in found if version != (13, 0)]


def test_this_wheel_by_itself_compiles_nothing(folder: Path) -> None:
    """Its builtins lie beside it; so where one of the tests below compiles, that is our doing."""
    undone = (
        "from gpucast.compile import nvrtc_builtins as builtins; "
        "builtins.load = lambda library, version: builtins.Builtins(version, '', None, '')"
    )
    _, error = cast(folder, nvrtc_13_0.packages(), undone)
    assert f"cannot use {BUILTINS}, without which it compiles nothing" in error


@pytest.mark.parametrize("where", ["wheel", "prefix", "LD_LIBRARY_PATH", "loader", "toolkit", "loaded", "loaded link"])
def test_it_compiles_wherever_it_is_found(where: str, folder: Path) -> None:
    packages: Path | str = ""
    lib, before, environment = folder / "lib", "", {}
    if where == "wheel":
        packages = nvrtc_13_0.packages()
        lib = packages / "nvidia/cu13/lib"
    else:
        copy(lib, nvrtc_13_0.builtins())
    if where == "prefix":
        before = f"sys.prefix = {str(folder)!r}"
    elif where == "LD_LIBRARY_PATH":
        # Not told to the loader, which reads it at the start and would find the builtins by itself.
        before = f"os.environ['LD_LIBRARY_PATH'] = {str(lib)!r}"
    elif where == "loader":
        # The loader knows a link to NVRTC alone.
        (folder / "links").mkdir()
        (folder / "links/libnvrtc.so.13").symlink_to(lib / "libnvrtc.so.13")
        environment["LD_LIBRARY_PATH"] = str(folder / "links")
        before = "del os.environ['LD_LIBRARY_PATH']"
    elif where == "toolkit":
        environment["CUDA_PATH"] = str(folder)
    elif where == "loaded":
        before = f"ctypes.CDLL({str(lib / 'libnvrtc.so.13')!r})"
    else:
        (folder / "link").symlink_to(lib / "libnvrtc.so.13")
        before = f"ctypes.CDLL({str(folder / 'link')!r})"
    used, arch = cast(folder, packages, before, **environment)
    path, *version = used.split()
    assert os.path.realpath(path) == str(lib / "libnvrtc.so.13")
    assert version == ["13", "0"]
    assert arch == "sm_100a"


def test_the_commands_with_the_wheel(folder: Path) -> None:
    def gpucast(*arguments: str) -> str:
        # Before the wheels of this environment.
        paths = os.pathsep.join((str(ROOT), str(nvrtc_13_0.packages())))
        cache = str(folder / "cache")
        return "\n".join(run(COMMAND, *arguments, PYTHONPATH=paths, GPUCAST_CACHE_DIR=cache))

    pair = "FLOAT", "FLOAT8E4M3FN"
    gpucast("kernel", *pair, "--emit", "cubin", "--arch", "sm_90", "-o", str(folder / "cubin"))
    code = (folder / "cubin").read_bytes()
    cubin.whole(code)
    assert list(cubin.kernels(code)) == ["gpucast_float32_to_float8e4m3fn"]
    assert ".target sm_100a" in gpucast("kernel", *pair, "--emit", "ptx", "--arch", "sm_100a")
    assert gpucast("warmup", "--pair", ":".join(pair), "--arch", "sm_90").startswith("2 kernels for sm_90 in ")
    facts = json.loads(gpucast("info", "--json"))["compiler"]
    assert facts["path"] == str(nvrtc_13_0.library())
    assert (facts["version"], facts["problem"]) == ([13, 0], None)


def test_no_builtins_and_then_some(folder: Path) -> None:
    path = copy(folder / "nvidia/cu13/lib")
    used, error = cast(folder, folder)
    assert used == f"{path} 13 0"
    assert error == (
        f"compile: NVRTC 13.0 ({path}) cannot use {BUILTINS}, without which it compiles nothing: it is not in "
        f"{path.parent}; {REMEDY}"
    )
    # The failure has not been taken for a no: once it is mended, sm_100a is accepted, with the same cache.
    link(nvrtc_13_0.builtins(), path.parent / BUILTINS)
    assert cast(folder, folder)[1] == "sm_100a"


def test_what_the_error_says_to_do_helps_a_copy_that_is_loaded_already(folder: Path) -> None:
    """Say, one of a toolkit, by another library."""
    path = copy(folder)
    before = f"ctypes.CDLL({str(path)!r})"
    used, error = cast(folder, before=before)
    assert used == f"{path} 13 0"
    assert error.endswith(f"it is not in {folder}; {REMEDY}")
    assert cast(folder, nvrtc_13_0.packages(), before) == [f"{path} 13 0", "sm_100a"]


def test_builtins_of_another_version(folder: Path) -> None:
    alt = nvrtc_13_0.builtins().with_name("libnvrtc-builtins.alt.so.13.0")
    for builtins in (alt, *(path for _, path in others())):
        # Under its own name nobody asks for it.
        lib = folder / builtins.name
        link(builtins, lib / builtins.name)
        _, error = cast(folder, before=f"ctypes.CDLL({str(copy(lib))!r})")
        assert error.endswith(f"it is not in {lib}; {REMEDY}")
        # Under the wanted name it is loaded, but the loader goes by the name that is written in it.
        path = copy(folder / f"renamed {builtins.name}", builtins)
        _, error = cast(folder, before=f"ctypes.CDLL({str(path)!r})")
        assert error.endswith(f"{path.parent / BUILTINS} is damaged or of another version; {REMEDY}")


def test_builtins_of_an_older_version(folder: Path) -> None:
    """With an NVRTC that finds them by its RPATH, whatever is written in them."""
    version = load(max(wheels())).version
    if version < (13, 1):
        pytest.skip("no NVRTC newer than 13.0 is installed")
    library = Path(wheels()[13])
    path = link(library, folder / library.name)
    builtins = link(nvrtc_13_0.builtins(), folder / builtins_name(version))
    _, error = cast(folder, before=f"ctypes.CDLL({str(path)!r})")
    assert error.endswith(
        f"{builtins} is damaged or of another version; "
        f"run: pip install --force-reinstall 'nvidia-cuda-nvrtc==13.{version[1]}.*'"
    )


def test_builtins_that_are_no_library(folder: Path) -> None:
    path = copy(folder / "lib")
    path.with_name(BUILTINS).write_text("cut short")
    _, error = cast(folder, before=f"ctypes.CDLL({str(path)!r})")
    assert f"compiles nothing: it cannot be loaded ({path.with_name(BUILTINS)}: file too short)" in error
    assert error.endswith(REMEDY)


def test_several_copies_in_one_process() -> None:
    """As where torch brings one and gpucast has another, of the same CUDA major or not, in any order."""
    paths = [str(nvrtc_13_0.library()), *wheels().values()]
    versions = [(13, 0), *(load(major).version for major in wheels())]
    wanted = [".".join(map(str, version)) for version in versions]
    for step in (1, -1):
        assert run(SEVERAL, *paths[::step]) == wanted[::step] * 2


def test_the_copy_of_another_library_and_a_newer_wheel(folder: Path) -> None:
    """The one that is there is taken, and finds its own builtins; one more of them makes no difference."""
    library = nvrtc_13_0.library()
    packages = Path(wheels()[max(wheels())]).parents[3]
    others_ = "".join(f"; ctypes.CDLL({str(path)!r})" for _, path in others())
    assert cast(folder, packages, f"ctypes.CDLL({str(library)!r}){others_}") == [f"{library} 13 0", "sm_100a"]
