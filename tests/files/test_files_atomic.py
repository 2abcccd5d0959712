# SPDX-License-Identifier: Apache-2.0
"""Files are replaced atomically: after any failure the old file is intact and no temporary file is left."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpucast import files
from gpucast.core.dtypes import dtype
from gpucast.files.atomic import inside
from tensors import full_disk, leftovers

pytestmark = pytest.mark.usefixtures("folder")

BIG = np.arange(1 << 20, dtype=np.float32)


@pytest.fixture(params=files.SUFFIXES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"x{request.param}"
    files.save(str(path), {"old": np.arange(3.0)})
    return path


def assert_untouched(old: Path) -> None:
    assert leftovers(old.parent, old.name) == []
    (x,) = files.load(str(old)).values()
    assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize("after", [0, 100, 1 << 20])
def test_a_full_disk(old: Path, after: int) -> None:
    with full_disk(after), pytest.raises(OSError) as caught:
        files.save(str(old), {"new": BIG})
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(old)
    assert_untouched(old)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError])
def test_an_error_in_the_middle(old: Path, error: type[BaseException]) -> None:
    plan = [files.Spec("new", dtype("FLOAT"), BIG.shape)]

    def chunks() -> Iterator[np.ndarray]:
        yield BIG[:1000]
        raise error

    with pytest.raises(error), files.create(str(old), plan) as writer:
        writer.write(plan[0], chunks())
    assert_untouched(old)


def test_folders_that_do_not_exist_and_names_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        files.save(str(tmp_path / "no" / "x.npy"), {"x": BIG})
    assert caught.value.filename == str(tmp_path / "no" / "x.npy")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(files.FileError, match="no regular file"):
        files.save(str(tmp_path / "folder.npy"), {"x": BIG})
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(files.FileError, match="no regular file"):
        files.save(str(tmp_path / "pipe.npy"), {"x": BIG})
    assert leftovers(tmp_path, "folder.npy", "pipe.npy") == []


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.npy", tmp_path / "link.npy"
    files.save(str(real), {"x": np.zeros(1)})
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~_umask()
    real.chmod(0o640)
    link.symlink_to("real.npy")
    files.save(str(link), {"x": np.ones(2)})
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert files.load(str(real))["real"].tolist() == [1, 1]
    assert leftovers(tmp_path, "real.npy", "link.npy") == []


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


# ---- files that are no files, and rights ----


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("x.npy")
    monkeypatch.setattr(os.path, "isfile", lambda path: True)
    with pytest.raises(files.FileError, match="x.npy: is no regular file"):
        files.TensorFile("x.npy")


def test_a_link_that_leads_through_more_links_than_any_system_follows() -> None:
    for number in range(1500):
        os.symlink(f"{number + 1}", f"{number}")
    with pytest.raises((files.FileError, OSError)):
        inside(".", "0", "x.onnx", "location")


def test_a_name_that_is_too_long_for_a_file() -> None:
    with pytest.raises(files.FileError, match="is too long for the name of a file"):
        inside(".", "x" * 300, "x.onnx", "location")


def test_a_file_that_is_replaced_gives_no_rights_of_its_owner_to_the_new_one() -> None:
    np.save("x.npy", np.ones(4, np.float32))
    os.chmod("x.npy", 0o6755)
    files.save("x.npy", {"x": np.zeros(4, np.float32)})
    assert os.stat("x.npy").st_mode & 0o7777 == 0o755
