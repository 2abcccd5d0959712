# SPDX-License-Identifier: Apache-2.0
"""Attacks on the caches: a stranger's code, a library that harms the process, and what kept others waiting."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import gpucast
from gpucast.compile import cache
from gpucast.compile.cache import Cache, digest
from gpucast.files import atomic

ROOT = Path(gpucast.__file__).parents[1]
KEY = digest("a kernel")


def put(folder: Path, value: bytes) -> Path:
    Cache(str(folder)).put(KEY, value)
    return folder / f"{KEY}.kernel"


# ---- 1: a stranger's code ----


def test_an_entry_that_is_a_link(tmp_path: Path) -> None:
    """To a file that is ours: one that we downloaded, or converted from what we downloaded."""
    downloaded = put(tmp_path / "downloads", b"evil")
    (tmp_path / "cache").mkdir(0o700)
    (tmp_path / "cache" / downloaded.name).symlink_to(downloaded)
    kept = Cache(str(tmp_path / "cache"))
    assert kept.get(KEY) is None
    kept.put(KEY, b"good")
    assert Cache(kept.folder).get(KEY) == b"good"
    assert Cache(str(tmp_path / "downloads")).get(KEY) == b"evil"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_may_write(tmp_path: Path, mode: int) -> None:
    entry = put(tmp_path / "cache", b"evil")
    entry.parent.chmod(mode)
    kept = Cache(str(entry.parent))
    assert kept.get(KEY) is None
    kept.put(KEY, b"good")
    assert kept.problem == f"{entry.parent}: {entry.parent} can be written by others"
    entry.parent.chmod(0o755)
    assert Cache(str(entry.parent)).get(KEY) == b"evil"


# ---- a cache that is only read, and one for each user ----


def test_a_cache_that_is_only_read(tmp_path: Path) -> None:
    put(tmp_path / "image", b"of the image")
    other = digest("another")
    kept = Cache(str(tmp_path / "own"), also=str(tmp_path / "image"))
    assert (kept.get(KEY), kept.get(other)) == (b"of the image", None)
    assert not (tmp_path / "own").exists()
    kept.put(other, b"later")
    kept.put(KEY, b"newer")
    assert len(os.listdir(tmp_path / "image")) == 1
    again = Cache(str(tmp_path / "own"), also=str(tmp_path / "image"))
    assert (again.get(KEY), again.get(other)) == (b"newer", b"later")
    # It is trusted no more than the own one.
    (tmp_path / "image").chmod(0o777)
    assert Cache(str(tmp_path / "none"), also=str(tmp_path / "image")).get(KEY) is None


def test_a_folder_for_all_has_one_for_each_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GPUCAST_CACHE_READ", raising=False)
    assert cache.cache_folder() == str(tmp_path)
    assert cache.read_folder("kernels") == ""
    tmp_path.chmod(0o1777)
    assert cache.cache_folder() == str(tmp_path / str(os.geteuid()))
    monkeypatch.setenv("GPUCAST_CACHE_READ", "image")
    assert cache.read_folder("kernels") == os.path.abspath("image/kernels")


# ---- the host's library ----


@pytest.mark.parametrize("system", ["tells", "does not tell"])
def test_the_umask_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """14: it is the whole process's, and other threads make files."""
    (tmp_path / "plain").write_bytes(b"")
    wanted = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask is set"))
    if system != "tells":
        monkeypatch.setattr(atomic, "open", _refuse, raising=False)
    assert atomic.new_mode() == wanted


def _refuse(*_: object) -> None:
    raise FileNotFoundError
