# SPDX-License-Identifier: Apache-2.0
"""The folder of compiled kernels: whole files only, bounded, repaired in silence, never a failure."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucast.files import atomic
from gpucast.kernel import cache
from gpucast.kernel.cache import Cache, digest

KEY = digest("a key")


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def put_at(where: Cache, key: str, value: bytes, age: float) -> None:
    """An entry that was last used `age` seconds ago."""
    where.put(key, value)
    path = Path(where.folder, f"{key}.kernel")
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))


@pytest.mark.parametrize("value", [b"", b"\0", b"cubin\0", bytes(range(256)) * 999])
def test_entries_come_back_in_this_process_and_in_the_next(tmp_path: Path, value: bytes) -> None:
    folder = tmp_path / "made" / "when" / "needed"
    kept = Cache(str(folder))
    assert kept.get(KEY) is None
    assert not (tmp_path / "made").exists()
    kept.put(KEY, value)
    assert kept.get(KEY) == value
    assert Cache(str(folder)).get(KEY) == value
    assert Cache(str(folder)).get(digest("another")) is None
    assert kept.usage() == (1, files(folder)[0].stat().st_size)
    assert kept.problem == ""


def test_a_key_hears_of_every_part() -> None:
    keys = [digest(), digest(""), digest("", ""), digest("ab"), digest("a", "b"), digest("b", "a"), digest("ab", "")]
    assert len(set(keys)) == len(keys)
    assert digest("é") == digest("é".encode())


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut by one byte": lambda data: data[:-1],
    "shorter than a checksum": lambda data: data[:7],
    "first bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "one byte more": lambda data: data + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_count_as_absent_and_are_replaced(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    Cache(str(tmp_path)).put(KEY, b"the value")
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    again = Cache(str(tmp_path))
    assert again.get(KEY) is None
    again.put(KEY, b"the value")
    assert Cache(str(tmp_path)).get(KEY) == b"the value"
    assert files(tmp_path) == [path]


@pytest.mark.parametrize("function", ["open", "replace"])
def test_a_folder_that_refuses_means_memory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def refuse(*args: object, **keywords: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    kept = Cache(str(tmp_path))

    def open_what_exists(path: Any, flags: int, *args: Any, **keywords: Any) -> int:
        if flags & os.O_CREAT:
            refuse()
        return open_any(path, flags, *args, **keywords)

    open_any = os.open
    with monkeypatch.context() as patched:
        if function == "open":
            patched.setattr(os, "open", open_what_exists)
        else:
            patched.setattr(os, "replace", refuse)
        kept.put(KEY, b"value")
        assert kept.problem == f"{tmp_path}: Permission denied"
    assert kept.get(KEY) == b"value"
    assert files(tmp_path) == []
    # A folder that takes files again is used again.
    kept.put(KEY, b"value")
    assert kept.problem == ""
    assert Cache(str(tmp_path)).get(KEY) == b"value"


def test_a_read_only_folder_still_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container image whose kernels were compiled when it was built, by another user."""

    def refuse(*args: object, **keywords: object) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    Cache(str(tmp_path)).put(KEY, b"value")
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o644 & ~umask()
    monkeypatch.setattr(os, "utime", refuse)
    assert Cache(str(tmp_path)).get(KEY) == b"value"


def umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old


def test_the_entries_used_longest_ago_make_room(tmp_path: Path) -> None:
    keys = [digest(str(i)) for i in range(6)]
    kept = Cache(str(tmp_path), limit=5000)
    for i, key in enumerate(keys[:4]):
        put_at(kept, key, bytes(1000), age=100 - i)
    # A reader in another process makes the oldest one young.
    assert Cache(str(tmp_path)).get(keys[0]) is not None
    for key in keys[4:]:
        kept.put(key, bytes(1000))
    assert kept.usage()[1] <= 5000
    fresh = Cache(str(tmp_path))
    assert [fresh.get(key) is not None for key in keys] == [True, False, False, True, True, True]


def test_nothing_goes_to_disk_with_a_limit_of_zero(tmp_path: Path) -> None:
    kept = Cache(str(tmp_path / "folder"), limit=0)
    kept.put(KEY, b"value")
    assert kept.get(KEY) == b"value"
    assert files(tmp_path) == []


def test_many_processes(tmp_path: Path) -> None:
    """Writers, readers and evictions at once: a reader sees a whole entry or none."""
    code = f"""
import sys
from gpucast.kernel.cache import Cache, digest
from gpucast.files import atomic
for i in range(150):
    kept = Cache({str(tmp_path)!r}, limit=20_000)
    number = (int(sys.argv[1]) * 3 + i) % 10
    value = bytes([number]) * 3000
    found = kept.get(digest(str(number)))
    assert found in (None, value), found[:50]
    kept.put(digest(str(number)), value)
    assert kept.problem == "", kept.problem
"""
    running = [subprocess.Popen([sys.executable, "-c", code, str(i)]) for i in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    last = Cache(str(tmp_path), limit=20_000)
    assert last.usage()[1] <= 20_000 + 3_032 * 4
    assert [path for path in files(tmp_path) if path.suffix == ".tmp"] == []


def test_what_a_killed_process_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    old, young = tmp_path / "a.kernel.1-0-00.tmp", tmp_path / "a.kernel.2-0-00.tmp"
    for path in (old, young):
        path.write_bytes(b"half a cub")
    os.utime(old, (1e9, 1e9))
    Cache(str(tmp_path)).put(KEY, b"value")
    assert not old.exists()
    assert young.exists()


# ---- folders of strangers, and of all ----


def test_a_folder_that_others_may_write(tmp_path: Path) -> None:
    """tests/core/test_trusted_files.py has what counts as one."""
    kept = Cache(str(tmp_path))
    kept.put(KEY, b"evil")
    tmp_path.chmod(0o1777)
    kept = Cache(str(tmp_path))
    assert kept.get(KEY) is None
    kept.put(KEY, b"good")
    assert kept.problem == f"{tmp_path}: {tmp_path} can be written by others"
    tmp_path.chmod(0o755)
    assert Cache(str(tmp_path)).get(KEY) == b"evil"


def test_a_cache_that_is_only_read(tmp_path: Path) -> None:
    Cache(str(tmp_path / "image")).put(KEY, b"of the image")
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


@pytest.mark.parametrize("system", ["tells", "does not tell"])
def test_the_umask_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """It is the whole process's, and other threads make files."""
    (tmp_path / "plain").write_bytes(b"")
    wanted = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask is set"))
    if system != "tells":
        monkeypatch.setattr(atomic, "open", _refuse, raising=False)
    assert atomic.new_mode() == wanted


def _refuse(*_: object) -> None:
    raise FileNotFoundError


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system does not tell owners")
def test_the_users_folder_in_a_shared_one_is_checked(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    folder = shared / "7"
    kernels = folder / cache.KERNELS
    cache.Cache(str(kernels)).put("key", b"value")
    assert cache.Cache(str(kernels)).get("key") == b"value" and not cache.problem(str(folder))
    folder.chmod(0o777)
    assert cache.Cache(str(kernels)).get("key") is None
    assert "can be written by others" in cache.problem(str(folder))
