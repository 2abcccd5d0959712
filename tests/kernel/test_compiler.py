# SPDX-License-Identifier: Apache-2.0
"""Text and architecture in, cubin out: which architecture, from which cache, and all of it without a GPU."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from gpucast import dtype
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import resolve
from gpucast.kernel import compiler, nvrtc
from gpucast.kernel.cache import Cache
from gpucast.kernel.compiler import CompileError, Compiler
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.kernel import Kernel
from gpucast.kernel.nvrtc import Compiled
from gpucast.kernel.nvrtc_search import NvrtcCopy
from nvrtc_wheels import INSTALLED, load, wheels

each_nvrtc = pytest.mark.parametrize("major", INSTALLED)


def kernel(src: str, dst: str) -> Kernel:
    return cast_kernel(resolve(dtype(src), dtype(dst)))


def opened(major: int, folder: Path) -> Compiler:
    """A compiler as a new process would have it."""
    load(major)
    return Compiler(NvrtcCopy(wheels()[major]), Cache(str(folder)))


class FakeNvrtc:
    """NVRTC of any version, whose cubins say what they were made from. `variants` are the suffixes that it knows."""

    def __init__(self, version: tuple[int, int], architectures: tuple[int, ...], variants: str = "") -> None:
        self.version, self.architectures, self.variants = version, architectures, variants
        self.compiled: list[tuple[str, str, str, tuple[str, ...]]] = []
        self.tried: list[str] = []

    def compile(self, text: str, name: str, arch: str, options: tuple[str, ...]) -> Compiled:
        self.compiled.append((text, name, arch, options))
        if text == "wrong":
            raise CompileError("no", 6, "no")
        return Compiled(f"{text} {name} {arch}".encode(), "a warning, é")

    def accepts(self, arch: str) -> bool:
        self.tried.append(arch)
        return arch[-1] in self.variants

    def opened(self, folder: Path) -> Compiler:
        return Compiler(NvrtcCopy(None, self), Cache(str(folder)))  # type: ignore[arg-type]


NVRTC_12_0 = ((12, 0), (50, 52, 60, 70, 75, 80, 86, 87, 89, 90), "a")
NVRTC_12_8 = ((12, 8), (50, 52, 60, 70, 75, 80, 86, 87, 89, 90, 100, 101, 120), "a")
NVRTC_13_5 = ((13, 5), (75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121), "af")
NVRTC_PLAIN = ((14, 0), (80, 90, 100, 120), "")


@pytest.mark.parametrize(
    ("known", "capability", "arch"),
    [
        (NVRTC_12_0, (7, 5), "sm_75"),
        (NVRTC_12_0, (9, 0), "sm_90"),
        (NVRTC_12_0, (10, 0), "compute_90"),
        (NVRTC_12_0, (12, 1), "compute_90"),
        (NVRTC_12_8, (8, 9), "sm_89"),
        (NVRTC_12_8, (8, 8), "compute_87"),
        (NVRTC_12_8, (10, 0), "sm_100a"),
        (NVRTC_12_8, (10, 3), "compute_101"),
        (NVRTC_12_8, (12, 1), "compute_120"),
        (NVRTC_13_5, (9, 0), "sm_90"),
        (NVRTC_13_5, (10, 3), "sm_103a"),
        (NVRTC_13_5, (12, 1), "sm_121a"),
        (NVRTC_13_5, (15, 0), "compute_121"),
        (NVRTC_PLAIN, (10, 0), "sm_100"),
    ],
)
def test_the_architecture_of_a_device(
    tmp_path: Path, known: tuple[tuple[int, int], tuple[int, ...], str], capability: tuple[int, int], arch: str
) -> None:
    fake = FakeNvrtc(*known)
    assert fake.opened(tmp_path).architecture(capability) == arch
    assert fake.opened(tmp_path).architecture(capability, specific=False) == arch.rstrip("a")
    # What was tried once is known to every later process.
    tried = list(fake.tried)
    assert fake.opened(tmp_path).architecture(capability) == arch
    assert fake.tried == tried
    assert len(tried) == (capability >= (10, 0) and arch.startswith("sm"))


@pytest.mark.parametrize(
    ("known", "capability", "needs"),
    [
        (NVRTC_12_0, (7, 0), "7.5"),
        (NVRTC_12_0, (3, 5), "7.5"),
        (NVRTC_13_5, (7, 2), "7.5"),
        (NVRTC_PLAIN, (7, 5), "8.0"),
    ],
)
def test_a_device_that_is_too_old(
    tmp_path: Path, known: tuple[tuple[int, int], tuple[int, ...], str], capability: tuple[int, int], needs: str
) -> None:
    words = f"compute capability {capability[0]}.{capability[1]}; gpucast with NVRTC .* needs {needs} or newer"
    with pytest.raises(DeviceUnavailable, match=words):
        FakeNvrtc(*known).opened(tmp_path).architecture(capability)


def test_an_architecture_as_a_person_writes_it(tmp_path: Path) -> None:
    made = FakeNvrtc(*NVRTC_12_8).opened(tmp_path)
    written = {
        "sm_90": "sm_90", "90": "sm_90", "9.0": "sm_90", "compute_90": "compute_90", "sm_100a": "sm_100a",
        "10.0a": "sm_100a", "compute_120a": "compute_120a", "12.0": "sm_120",
    }  # fmt: skip
    assert {text: made.parse(text) for text in written} == written
    for text in (
        "sm_91",
        "sm_70",
        "sm_100f",
        "sm90",
        "9,0",
        "",
        "sm_",
        "sm_90 ",
        "SM_90",
        "ampere",
        "99999999999999999999",
    ):
        with pytest.raises(ValueError, match=r"is not an architecture that gpucast .* NVRTC 12\.8; expected sm_75, "):
            made.parse(text)


def test_the_second_time_comes_from_the_cache(tmp_path: Path) -> None:
    fake = FakeNvrtc(*NVRTC_12_8)
    first = fake.opened(tmp_path).compile("text", "name", "sm_90")
    assert first.code == b"text name sm_90"
    # Warnings are told every time.
    assert first.log == "a warning, é"
    later = fake.opened(tmp_path)
    assert later.compile("text", "name", "sm_90") == later.compile("text", "name", "sm_90") == first
    assert len(fake.compiled) == 1
    assert fake.compiled[0][3] == later.options


def test_whatever_changes_a_cubin_changes_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvrtc(*NVRTC_12_8)
    first = fake.opened(tmp_path).compile("text", "name", "sm_90")
    for asked in [("text ", "name", "sm_90"), ("text", "nam", "sm_90"), ("text", "name", "sm_90a")]:
        count = len(fake.compiled)
        assert fake.opened(tmp_path).compile(*asked).code == " ".join(asked).encode()
        assert len(fake.compiled) == count + 1
    count = len(fake.compiled)
    newer = FakeNvrtc((12, 9), *NVRTC_12_8[1:])
    newer.opened(tmp_path).compile("text", "name", "sm_90")
    assert len(newer.compiled) == 1
    with monkeypatch.context() as patched:
        patched.setattr(Compiler, "options", ("--std=c++20",))
        fake.opened(tmp_path).compile("text", "name", "sm_90")
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "_FORMAT", "another")
        fake.opened(tmp_path).compile("text", "name", "sm_90")
    assert len(fake.compiled) == count + 2
    assert fake.opened(tmp_path).compile("text", "name", "sm_90") == first
    assert len(fake.compiled) == count + 2


def test_an_error_is_not_kept(tmp_path: Path) -> None:
    fake = FakeNvrtc(*NVRTC_12_8)
    made = fake.opened(tmp_path)
    for _ in range(2):
        with pytest.raises(CompileError):
            made.compile("wrong", "name", "sm_90")
    assert len(fake.compiled) == 2
    assert not list(tmp_path.iterdir())
    assert not made._gates


@each_nvrtc
def test_a_warm_start_loads_no_nvrtc(major: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kernel("float32", "float8e4m3fn")
    cold = opened(major, tmp_path)
    arch = cold.architecture((10, 0))
    first = cold.compile(source.text, source.name, arch)

    def refuse(path: str) -> None:
        raise AssertionError(f"{path} was loaded")

    monkeypatch.setattr(nvrtc, "load", refuse)
    warm = Compiler(NvrtcCopy(wheels()[major]), Cache(str(tmp_path)))
    assert warm.compile(source.text, source.name, warm.architecture((10, 0))) == first


@pytest.mark.parametrize(("chosen", "limit"), [("0", 0), ("1", 1 << 20), ("", 256 << 20), (None, 256 << 20)])
def test_the_size_of_the_cache_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None, limit: int
) -> None:
    set_cache(monkeypatch, tmp_path / "folder", chosen)
    assert compiler.compiler().cache.limit == limit
    text = 'extern "C" __global__ void k() {}'
    assert compiler.compile(text, "k", "sm_80") == compiler.compile(text, "k", "sm_80")
    assert (tmp_path / "folder").exists() == (limit > 0)


def set_cache(monkeypatch: pytest.MonkeyPatch, folder: Path, size: str | None) -> None:
    """Environment and state of a process that has not compiled yet."""
    load(INSTALLED[0])
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(folder))
    monkeypatch.delenv("GPUCAST_CACHE_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("GPUCAST_CACHE_SIZE", size)
    monkeypatch.setattr(compiler, "_compiler", functools.lru_cache(compiler._compiler.__wrapped__))


@pytest.mark.parametrize("chosen", ["64M", "-1", "1.5", "lots"])
def test_a_size_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    set_cache(monkeypatch, tmp_path, chosen)
    with pytest.raises(ValueError, match=f"GPUCAST_CACHE_SIZE='{chosen}' is not a number of MiB; expected one such as"):
        compiler.compiler()
