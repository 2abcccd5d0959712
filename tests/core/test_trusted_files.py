# SPDX-License-Identifier: Apache-2.0
"""Files that are trusted: which folders, links and files count, and that nothing is exchanged in between."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucast.core import trusted_files
from gpucast.core.trusted_files import Folder, Untrusted, problem
from strangers import STRANGER, as_root, exchanging

if not trusted_files.OWNERS_ARE_KNOWN:
    pytest.skip("the system tells no owners of files", allow_module_level=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """a/b/files with a file in it, all of them private."""
    made = tmp_path / "a" / "b" / "files"
    with Folder(str(made), 0o700) as opened:
        opened.write("entry", b"ours")
    return made


def read(folder: Path) -> bytes:
    with Folder(str(folder)) as opened:
        return opened.read("entry")


def give(path: Path, uid: int = STRANGER) -> None:
    os.chown(path, uid, uid, follow_symlinks=False)


def test_what_is_written_is_read(folder: Path) -> None:
    assert read(folder) == b"ours"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "entry")] == [0o700, 0o600]
    assert os.listdir(folder) == ["entry"]
    with Folder(str(folder)) as opened:
        opened.write("entry", b"again", 0o644)
        os.utime(folder / "entry", (0, 0))
        opened.touch("entry")
        assert opened.files()["entry"].st_mtime > 1e9
        assert opened.is_writable()
        opened.remove("entry")
        assert opened.files() == {}
        with pytest.raises(FileNotFoundError):
            opened.read("entry")
    assert problem(str(folder)) == problem(str(folder / "no" / "such")) == ""


def test_no_descriptor_is_left(folder: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    (folder.parent / "link").symlink_to(folder)
    for path in (folder, folder.parent / "link", folder / "missing", folder / "entry"):
        with contextlib.suppress(OSError):
            read(path)
    for kind in KINDS.values():
        kind(folder / "entry")
        with pytest.raises(OSError):
            read(folder)
        with contextlib.suppress(OSError):
            (folder / "entry").rmdir()
        with Folder(str(folder)) as opened:
            opened.write("entry", b"ours")
    folder.chmod(0o777)
    assert problem(str(folder))
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../entry", "/etc/passwd"])
def test_names_lead_nowhere_else(folder: Path, name: str) -> None:
    with Folder(str(folder)) as opened:
        for call in (opened.read, opened.remove, opened.touch, lambda name: opened.write(name, b"")):
            with pytest.raises(ValueError, match="is not the name of a file in a folder"):
                call(name)


@pytest.mark.parametrize(("mode", "why"), [(0o777, True), (0o775, True), (0o757, True), (0o1777, True), (0o755, False)])
def test_the_folder_of_the_files_is_written_by_nobody_else(folder: Path, mode: int, why: bool) -> None:
    folder.chmod(mode)
    assert problem(str(folder)) == (f"{folder} can be written by others" if why else "")


@pytest.mark.parametrize(
    ("mode", "why"), [(0o777, True), (0o757, True), (0o1777, False), (0o1775, False), (0o755, False)]
)
def test_parents_are_written_by_nobody_else_unless_sticky(folder: Path, mode: int, why: bool) -> None:
    for parent in (folder.parent, folder.parent.parent):
        parent.chmod(mode)
        assert problem(str(folder)) == (f"{parent} can be written by others" if why else "")
        parent.chmod(0o755)


@pytest.mark.parametrize("is_private", [False, True])
def test_a_group_counts_as_others_unless_it_is_the_users_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    monkeypatch.setattr(trusted_files, "_is_private_group", lambda group: is_private)
    folder.parent.chmod(0o775)
    assert problem(str(folder)) == ("" if is_private else f"{folder.parent} can be written by others")
    folder.parent.chmod(0o755)
    # Where the files are it does not.
    folder.chmod(0o775)
    assert problem(str(folder)) == f"{folder} can be written by others"


def test_whose_group_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    def user(name: str, uid: int, primary: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", uid, primary, "", "", ""))

    def entries(name: str, members: list[str], primary: int, others: list[pwd.struct_passwd]) -> None:
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: user("ann", uid, primary))
        monkeypatch.setattr(pwd, "getpwall", lambda: [user("ann", os.geteuid(), primary), *others])
        monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, members)))

    bob, other_name = os.geteuid() + 1, user("anna", os.geteuid(), 7)
    for name, members, primary, others, is_private in [
        ("ann", [], 7, [], True),
        ("ann", ["ann"], 7, [user("bob", bob, 8), other_name], True),
        ("ann", ["ann", "bob"], 7, [], False),
        ("ann", ["bob"], 7, [], False),
        ("staff", [], 7, [], False),
        ("ann", [], 8, [], False),
        # Whose first group it is too is no member by name.
        ("ann", [], 7, [user("bob", bob, 7)], False),
    ]:
        entries(name, members, primary, others)
        assert trusted_files._is_private_group(7) == is_private

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert not trusted_files._is_private_group(7)


@as_root
def test_folders_of_others_do_not_count(folder: Path) -> None:
    for path in (folder, folder.parent, folder.parent.parent):
        give(path)
        assert problem(str(folder)) == f"{path} belongs to another user (uid {STRANGER})"
        with pytest.raises(Untrusted):
            read(folder)
        give(path, 0)
    assert read(folder) == b"ours"


def test_folders_count_by_who_asks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can give files away: the one who asks is another."""
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    if us == 0:
        assert read(folder) == b"ours"
    else:
        assert f"belongs to another user (uid {us})" in problem(str(folder))


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
    assert isinstance(caught.value, Untrusted) == (kind != "link")
    assert (caught.value.errno == errno.ELOOP) == (kind == "link")


def test_links_on_the_way_count_where_nobody_else_puts_them(folder: Path) -> None:
    base = folder.parent.parent
    (base / "absolute").symlink_to(folder.parent)
    (base / "relative").symlink_to("b/../b/files")
    (base / "twice").symlink_to("relative")
    for path in ("absolute/files", "relative", "twice"):
        assert read(base / path) == b"ours"
    # What is missing is made where a link leads.
    with Folder(str(base / "absolute" / "new" / "below"), 0o700):
        assert (folder.parent / "new" / "below").is_dir()
    for mode in (0o777, 0o1777):
        base.chmod(mode)
        for path in ("absolute/files", "relative"):
            assert problem(str(base / path)), path
    base.chmod(0o755)
    # Where it leads is judged, too.
    folder.parent.chmod(0o777)
    assert problem(str(base / "relative")) == f"{folder.parent} can be written by others"


@as_root
def test_links_of_others_do_not_count(folder: Path) -> None:
    link = folder.parent.parent / "link"
    link.symlink_to(folder)
    give(link)
    assert problem(str(link)) == f"{link} belongs to another user (uid {STRANGER})"


def test_a_file_is_not_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (folder / "entry").unlink()
    (folder / "entry").symlink_to(tmp_path / "precious")
    with Folder(str(folder)) as opened:
        opened.write("entry", b"new")
        assert opened.read("entry") == b"new"
    assert (tmp_path / "precious").read_bytes() == b"precious"


# ---- while somebody exchanges what is there ----


ROUNDS = 3000


def test_an_entry_that_is_exchanged_for_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b"foreign")
    (tmp_path / "foreign").chmod(0o600)
    entry, link, good = folder / "entry", folder / "link", folder / "good"

    def place_link() -> None:
        link.symlink_to(tmp_path / "foreign")
        link.replace(entry)

    def place_file() -> None:
        good.write_bytes(b"ours")
        good.chmod(0o600)
        good.replace(entry)

    seen = set()
    with exchanging(place_link, place_file):
        for _ in range(ROUNDS):
            with contextlib.suppress(OSError):
                seen.add(read(folder))
    assert seen == {b"ours"}


@as_root
def test_a_folder_that_is_exchanged_for_a_strangers(folder: Path) -> None:
    """The stranger's holds a link to, or has as its own name, a file that is ours, such as one that we downloaded."""
    theirs, aside = folder.parent / "theirs", folder.parent / "aside"
    theirs.mkdir()
    (theirs / "entry").write_bytes(b"foreign")
    (theirs / "entry").chmod(0o600)
    give(theirs)

    def exchange() -> None:
        folder.rename(aside)
        theirs.rename(folder)

    def back() -> None:
        folder.rename(theirs)
        aside.rename(folder)

    seen = set()
    with exchanging(exchange, back):
        for _ in range(ROUNDS):
            with contextlib.suppress(OSError):
                seen.add(read(folder))
            # What is written goes to ours or nowhere.
            with contextlib.suppress(OSError), Folder(str(folder)) as opened:
                opened.write("new", b"new")
    assert seen == {b"ours"}
    assert os.listdir(theirs) == ["entry"]
