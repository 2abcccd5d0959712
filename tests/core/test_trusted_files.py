# SPDX-License-Identifier: Apache-2.0
"""Files that are trusted: which folders, links and files count, and that nothing is exchanged in between."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.parametrize(("mode", "why"), [(0o777, True), (0o775, True), (0o757, True), (0o1777, True), (0o755, False)])
def test_the_folder_of_the_files_is_written_by_nobody_else(folder: Path, mode: int, why: bool) -> None:
    folder.chmod(mode)
    assert problem(str(folder)) == (f"{folder} can be written by others" if why else "")


@as_root
def test_folders_of_others_do_not_count(folder: Path) -> None:
    give(folder)
    assert problem(str(folder)) == f"{folder} belongs to another user (uid {STRANGER})"
    with pytest.raises(Untrusted):
        read(folder)
    give(folder, 0)
    # Who owns a parent can only put another folder there, which is his.
    give(folder.parent)
    assert read(folder) == b"ours"


@as_root
def test_files_of_others_do_not_count(folder: Path) -> None:
    give(folder / "entry")
    with pytest.raises(Untrusted, match=rf"entry belongs to another user \(uid {STRANGER}\)"):
        read(folder)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_files_that_others_may_write_do_not_count(folder: Path, mode: int) -> None:
    (folder / "entry").chmod(mode)
    with pytest.raises(Untrusted, match="entry can be written by others"):
        read(folder)


def _link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


KINDS: dict[str, Callable[[Path], object]] = {
    "link": _link,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_count(folder: Path, kind: str) -> None:
    KINDS[kind](folder / "entry")
    with pytest.raises(OSError) as caught:
        read(folder)
    # A pipe would be waited for.
    assert isinstance(caught.value, Untrusted) == (kind == "pipe")
    assert (caught.value.errno == errno.ELOOP) == (kind == "link")


@as_root
def test_links_of_others_do_not_count(folder: Path) -> None:
    link = folder.parent.parent / "link"
    link.symlink_to(folder)
    assert read(link) == b"ours"
    give(link)
    assert problem(str(link)) == f"{link} belongs to another user (uid {STRANGER})"


def test_a_file_is_not_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (folder / "entry").unlink()
    (folder / "entry").symlink_to(tmp_path / "precious")
    opened = Folder(str(folder))
    opened.write("entry", b"new")
    assert opened.read("entry") == b"new"
    assert (tmp_path / "precious").read_bytes() == b"precious"
