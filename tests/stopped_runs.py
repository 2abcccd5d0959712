# SPDX-License-Identifier: Apache-2.0
"""Conversions stopped at each step, and run again: a program of its own.

A run is killed (in a fork of its own) before each call that may change a file or folder; or each call of a function of
`os`, or of `fcntl.flock`, fails with an error of the system; or Ctrl-C comes after it. Reads a list of cases (JSON)
from stdin, each {"argv", "folder", "how"}; writes for each the names of the steps and what went wrong.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from conversions import contents, entered_copy
from gpucast import checkpoints, cli

_CHANGES = ("chmod", "fchmod", "mkdir", "open", "rename", "replace", "rmdir", "unlink")
#: What writes an open file, or gives back a lock.
_WRITES = ("write", "writelines", "flush", "truncate", "ftruncate", "pwrite", "pwritev", "sendfile", "close", "flock")
#: What else may fail.
_LOOKS = ("access", "fstat", "fsync", "listdir", "lstat", "readlink", "scandir", "stat", "statvfs")
_ERRORS = (errno.EIO, errno.EACCES, errno.ESTALE)


class Stops:
    """Steps numbered from 0; at number `at` the stop happens."""

    def __init__(self, how: str, at: int) -> None:
        self._how, self._at = how, at
        self.names: list[str] = []

    @contextlib.contextmanager
    def happening(self) -> Iterator[None]:
        if self._how == "kill":
            threading.setprofile(self._called)
            sys.setprofile(self._called)
            try:
                yield
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
            return
        named = [(os, name) for name in (*_CHANGES, *_LOOKS)] + [(fcntl, "flock")]
        before = [(module, name, getattr(module, name)) for module, name in named]
        for module, name, function in before:
            setattr(module, name, self._wrapped(name, function))
        # What else asks whether a function can do something finds it by itself.
        for name in ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids"):
            known: set[Any] = getattr(os, name)
            known |= {getattr(module, one) for module, one, function in before if function in known}
        try:
            yield
        finally:
            for module, name, function in before:
                setattr(module, name, function)

    def _called(self, frame: Any, event: str, arg: Any) -> None:
        if event == "c_call" and arg.__name__ in (*_CHANGES, *_WRITES):
            if len(self.names) == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.names.append(arg.__name__)

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            number = len(self.names)
            self.names.append(name)
            if number != self._at:
                # Nothing is to last here.
                return None if name == "fsync" else function(*args, **keywords)
            if self._how == "interrupt":
                function(*args, **keywords)
                raise KeyboardInterrupt
            number = _ERRORS[number % len(_ERRORS)]
            raise OSError(number, os.strerror(number), *(args[:1] if isinstance(args[0], str) else ()))

        return call


def convert(argv: Sequence[str], how: str = "", at: int = -1) -> tuple[int, list[str], int]:
    """The exit code of the command, the steps that were made while it worked, and the bytes it found finished."""
    stops, carry_out, found = Stops(how, at), checkpoints.run, list[checkpoints.Outcome]()

    def carried_out(plan: Any, options: Any, outcome: checkpoints.Outcome, advance: Any) -> None:
        found.append(outcome)
        with stops.happening() if how else contextlib.nullcontext():
            carry_out(plan, options, outcome, advance)

    checkpoints.run = carried_out
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            code = cli.main(argv)
        return code, stops.names, found[0].resumed if found else 0
    finally:
        checkpoints.run = carry_out


def stopped(argv: list[str], how: str, at: int) -> int:
    """The exit code; 1 after a kill."""
    if how != "kill":
        return convert(argv, how, at)[0]
    child = os.fork()
    if child == 0:
        os._exit(convert(argv, how, at)[0])
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (at, status)
    return 1


def case(argv: list[str], folder: Path, how: str, again: Sequence[str] = (), every: int = 1) -> dict[str, Any]:
    """Stop a conversion at each step, or every few, see what is left, and finish it, or do another one instead."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:

        def fresh(name: str) -> Path:
            return entered_copy(folder, Path(scratch) / name)

        before = contents(folder)
        # Again, for the first one imports more.
        for name in ("first", "whole"):
            where = fresh(name)
            code, steps, _ = convert(argv, how)
            assert code == 0, code
        after = contents(where)
        last = after
        if again:
            where = fresh("again")
            assert convert(again)[0] == 0
            last = contents(where)
        problems, resumed = [], 0
        for at in range(0, len(steps), every):
            where = fresh(str(at))
            code = stopped(argv, how, at)
            step = f"{at} ({steps[at]}): "
            left = {name: data for name, data in contents(where).items() if not _is_unfinished(name)}
            if code == 0 and left != after:
                problems.append(f"{step}success, and {sorted(left)}")
            if code and left == after and how == "error":
                problems.append(f"{step}an error, though all is written")
            # External data has its place, the model that refers to it not yet.
            half = before | {name: data for name, data in after.items() if name.endswith(".data")}
            if how == "interrupt" and left != half and any(map(_is_unfinished, os.listdir(where))):
                problems.append(f"{step}left unfinished work")
            if left not in (before, half, after):
                problems.append(f"{step}left {sorted(left)}")
            done = 0 if again or left == after else _finished(where)
            code, _, found = convert(again or argv)
            if again and code and left != before:
                # Nothing outside of the folder is taken back: the command that was stopped completes it.
                code, _, _ = convert(argv)
            elif code == 0 and contents(where) != last:
                problems.append(f"{step}went on to {sorted(contents(where))}")
            resumed += found
            now = {name: data for name, data in contents(where).items() if not _is_unfinished(name)}
            # What is whole may be refused, as it is after a success: folders and external data are never replaced.
            if (code and not left == after == now) or now not in (after, last):
                problems.append(f"{step}went on with {code} to {sorted(contents(where))}")
            # Nothing was left to do but to remove an empty folder, and what is whole was refused.
            is_empty = left == after and not list(where.glob("*.partial/job.json"))
            if any(map(_is_unfinished, os.listdir(where))) and not is_empty:
                problems.append(f"{step}left unfinished work in the end")
            if found < done:
                problems.append(f"{step}{done} bytes were finished, {found} were found")
            shutil.rmtree(where)
        return {"steps": steps, "problems": problems, "resumed": resumed}


def _is_unfinished(name: str) -> bool:
    return ".partial" in Path(name).parts[0]


def _finished(where: Path) -> int:
    """Bytes of the source that the journals call finished, of formats that are gone on with."""
    lines = [
        line
        for path in where.glob("*.partial/work/*.jsonl")
        if not list(where.glob("*.onnx"))
        for line in path.read_bytes().split(b"\n")[:-1]
    ]
    return sum(json.loads(line).get("bytes_in", 0) for line in lines)


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    json.dump([case(**told | {"folder": Path(told["folder"])}) for told in cases], sys.stdout)
