# SPDX-License-Identifier: Apache-2.0
"""Files that are trusted: which folders, links and files count, and that nothing is exchanged in between."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucast.core import trusted_files
from gpucast.core.trusted_files import Folder, Untrusted, problem
from strangers import STRANGER, as_root

if not trusted_files.OWNERS_ARE_KNOWN:
    pytest.skip("the system tells no owners of files", allow_module_level=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """a/b/files with a file in it, all of them private."""
    made = tmp_path / "a" / "b" / "files"
    Folder(str(made), 0o700).write("entry", b"ours")
    return made


def read(folder: Path) -> bytes:
    return Folder(str(folder)).read("entry")


def give(path: Path, uid: int = STRANGER) -> None:
    os.chown(path, uid, uid, follow_symlinks=False)


def test_what_is_written_is_read(folder: Path) -> None:
    assert read(folder) == b"ours"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "entry")] == [0o700, 0o600]
    assert os.listdir(folder) == ["entry"]
    opened = Folder(str(folder))
    opened.write("entry", b"again", 0o644)
    os.utime(folder / "entry", (0, 0))
    opened.touch("entry")
    assert opened.files()["entry"].st_mtime > 1e9
    opened.remove("entry")
    assert opened.files() == {}
    with pytest.raises(FileNotFoundError):
        opened.read("entry")
    assert problem(str(folder)) == problem(str(folder / "no" / "such")) == ""


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../entry", "/etc/passwd"])
def test_names_lead_nowhere_else(folder: Path, name: str) -> None:
    opened = Folder(str(folder))
    for call in (opened.read, opened.remove, opened.touch, lambda name: opened.write(name, b"")):
        with pytest.raises(ValueError, match="is not the name of a file in a folder"):
            call(name)


def _link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


OTHERS, STRANGERS = "can be written by others", f"belongs to another user (uid {STRANGER})"
#: What is done to the folder, and why it is not trusted then.
FOLDERS: list[Any] = [(lambda folder, mode=mode: folder.chmod(mode), OTHERS) for mode in (0o777, 0o775, 0o757, 0o1777)]
FOLDERS += [pytest.param(give, STRANGERS, marks=as_root)]
#: What is done to its file, and what is said of that: a link is not followed, a pipe not waited for.
FILES: list[Any] = [(lambda file, mode=mode: file.chmod(mode), OTHERS) for mode in (0o620, 0o602, 0o666)]
FILES += [pytest.param(give, STRANGERS, marks=as_root), (_link, os.strerror(errno.ELOOP))]
FILES += [(lambda file: (file.unlink(), file.mkdir()), ""), (lambda file: (file.unlink(), os.mkfifo(file)), "")]


@pytest.mark.parametrize(("change", "why"), FOLDERS)
def test_folders_that_are_not_trusted(folder: Path, change: Callable[[Path], object], why: str) -> None:
    change(folder)
    assert problem(str(folder)) == f"{folder} {why}"
    with pytest.raises(Untrusted):
        read(folder)


@pytest.mark.parametrize(("change", "why"), FILES)
def test_files_that_are_not_trusted(folder: Path, change: Callable[[Path], object], why: str) -> None:
    change(folder / "entry")
    with pytest.raises(OSError) as caught:
        read(folder)
    assert why in str(caught.value)
    is_link_or_folder = (folder / "entry").is_symlink() or (folder / "entry").is_dir()
    assert isinstance(caught.value, Untrusted) != is_link_or_folder


@as_root
def test_parents_and_links_of_others(folder: Path) -> None:
    # Who owns a parent can only put another folder there, which is his.
    give(folder.parent)
    assert read(folder) == b"ours"
    link = folder.parent.parent / "link"
    link.symlink_to(folder)
    assert read(link) == b"ours"
    give(link)
    assert problem(str(link)) == f"{link} {STRANGERS}"


def test_a_file_is_not_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (folder / "entry").unlink()
    (folder / "entry").symlink_to(tmp_path / "precious")
    opened = Folder(str(folder))
    opened.write("entry", b"new")
    assert opened.read("entry") == b"new"
    assert (tmp_path / "precious").read_bytes() == b"precious"
