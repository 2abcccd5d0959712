# SPDX-License-Identifier: Apache-2.0
"""Conversions stopped at each step between the program and the file system, and run again: a program of its own.

A step is a call of a function of `os`, or of `fcntl.flock`. At one step a run is killed before it (in a fork of its
own), or the call fails with an error of the system, or Ctrl-C comes after it. Reads a list of cases (JSON) from stdin,
each {"argv", "folder", "how"}; writes for each the names of the steps and what went wrong.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from conversions import contents, entered_copy
from gpucast import checkpoints, cli

#: What changes something; before each of these a run is killed.
_CHANGES = ("chmod", "fchmod", "mkdir", "open", "rename", "replace", "rmdir", "unlink")
#: What else may fail.
_LOOKS = ("access", "fstat", "fsync", "listdir", "lstat", "readlink", "scandir", "stat", "statvfs")
_ERRORS = (errno.EIO, errno.EACCES, errno.ESTALE)


class Stops:
    """Calls numbered from 0; at number `at` the stop happens."""

    def __init__(self, how: str, at: int) -> None:
        self._how, self._at = how, at
        self.names: list[str] = []

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        named = [(os, name) for name in (*_CHANGES, *(() if self._how == "kill" else _LOOKS))]
        named += [] if self._how == "kill" else [(fcntl, "flock")]
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

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            if name == "open" and self._how == "kill" and not args[1] & os.O_CREAT:
                return function(*args, **keywords)
            number = len(self.names)
            self.names.append(f"{name} {os.path.basename(args[0])}" if isinstance(args[0], str) else name)
            if number != self._at:
                # Nothing is to last here.
                return None if name == "fsync" else function(*args, **keywords)
            if self._how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._how == "interrupt":
                function(*args, **keywords)
                raise KeyboardInterrupt
            number = _ERRORS[number % len(_ERRORS)]
            raise OSError(number, os.strerror(number), *(args[:1] if isinstance(args[0], str) else ()))

        return call


def convert(argv: Sequence[str], how: str = "", at: int = -1) -> tuple[int, list[str]]:
    """The exit code of the command, and the steps that were made while it worked."""
    stops = Stops(how, at)
    carry_out = checkpoints.run

    def carried_out(*args: Any) -> None:
        with stops.patched():
            carry_out(*args)

    checkpoints.run = carried_out  # type: ignore[assignment]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return cli.main(argv), stops.names
    finally:
        checkpoints.run = carry_out


def killed(argv: list[str], at: int) -> bool:
    """Whether a run in a fork came to the step."""
    child = os.fork()
    if child == 0:
        os._exit(convert(argv, "kill", at)[0])
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def case(argv: list[str], folder: Path, how: str, again: Sequence[str] = (), every: int = 1) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:

        def fresh(name: str) -> Path:
            return entered_copy(folder, Path(scratch) / name)

        before = contents(folder)
        where = fresh("whole")
        code, steps = convert(argv, how)
        assert code == 0, code
        after = last = contents(where)
        if again:
            where = fresh("again")
            assert convert(again)[0] == 0
            last = contents(where)
        problems = []
        for at in range(0, len(steps), every):
            where = fresh(str(at))
            if how == "kill":
                assert killed(argv, at), at
                code = 1
            else:
                code, _ = convert(argv, how, at)
            step = f"{at} ({steps[at]}): "
            left = {name: data for name, data in contents(where).items() if ".partial" not in Path(name).parts[0]}
            if code == 0 and left != after:
                problems.append(f"{step}success, and {sorted(left)}")
            if code and left == after and how == "error":
                problems.append(f"{step}an error, though all is written")
            allowed = [before, after]
            if how == "kill":
                # External data has its place, the model that refers to it not yet.
                allowed.append(before | {name: data for name, data in after.items() if name.endswith(".data")})
            if how == "interrupt" and any(".partial" in name for name in os.listdir(where)):
                problems.append(f"{step}left unfinished work")
            if left not in allowed:
                problems.append(f"{step}left {sorted(left)}")
            code, _ = convert(again or argv)
            # What is whole may be refused, as it is after a success: folders and external data are never replaced.
            is_refused = code == 1 and left == after == contents(where)
            is_last = code == 0 and contents(where) == last
            if not (is_last or is_refused) or any(".partial" in name for name in os.listdir(where)):
                problems.append(f"{step}went on with {code} to {sorted(contents(where))}")
            shutil.rmtree(where)
        return {"steps": steps, "problems": problems}


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    json.dump([case(**told | {"folder": Path(told["folder"])}) for told in cases], sys.stdout)
