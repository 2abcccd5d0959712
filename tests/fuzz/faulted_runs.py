# SPDX-License-Identifier: Apache-2.0
"""Jobs run with a fault, or a signal, at each call of the system, and then run again: a program of its own.

It needs the shim preloaded, has everything imported, and forks for each run, so that a run takes milliseconds. Reads
cases (JSON) from stdin, each the name of a function ("what") and its arguments: of the calls of a "case", a job, or of
the "cache" of kernels a `share` is tried, and the same one each time; a `lasting` fault is that of all later calls as
well; "together" has several processes do a job at once. Writes for each the numbers of calls and of runs, and what went
wrong.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversions import contents
from fuzz import forks, jobs
from fuzz.shim import HOWS, Shim, numbers
from gpucast import cli
from gpucast import convert as conversion
from gpucast.kernel.cache import Cache

#: What a run may say besides its one error.
_WHOLE = "is written and whole"
_ALSO = ("what is finished is kept in", _WHOLE)


@dataclass
class Ended:
    """How a run ended: its exit code, or the signal that ended it (negative), and what it printed."""

    code: int
    printed: str


class Run:
    """The command in a fork, with faults at the calls from `first` to `last`."""

    def __init__(self, argv: list[str], shim: Shim, how: str, first: int, last: int) -> None:
        reader, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(reader)
            self._work(argv, shim, how, first, last, writer)
        os.close(writer)
        self._reader = reader

    def _work(self, argv: list[str], shim: Shim, how: str, first: int, last: int, writer: int) -> None:
        code = 70
        try:
            os.dup2(writer, 2)
            os.close(writer)
            sys.stdout = sys.stderr = open(2, "w", buffering=1, encoding="utf-8")
            if how.startswith("SIG"):
                # Ctrl-C may come between the opening of a file and what closes it.
                warnings.simplefilter("ignore", ResourceWarning)
            shim.arm(how, first, last)
            code = cli.main(argv)
        except BaseException:
            traceback.print_exc()
        shim.disarm()
        sys.stderr.flush()
        os._exit(code)

    def ended(self) -> Ended:
        with open(self._reader, encoding="utf-8", errors="replace") as file:
            printed = file.read()
        return Ended(os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1]), printed)


def is_unfinished(name: str) -> bool:
    return ".partial" in Path(name).parts[0]


def finished_bytes(where: Path) -> int:
    """Bytes of the source that the journals call finished, of formats that are gone on with."""
    # A file of another format is begun anew.
    journals = [path for name in ("out", "*.safetensors") for path in where.glob(f"{name}.partial/work/*.jsonl")]
    lines = [line for path in journals for line in path.read_bytes().split(b"\n")[:-1]]
    return sum(json.loads(line).get("bytes_in", 0) for line in lines)


def is_same(found: dict[str, bytes], wanted: dict[str, bytes]) -> bool:
    """Whether the files are those that are wanted. A report, which is written last, tells of how the run went; an
    archive may be laid out in another way."""
    names = found.keys() - {jobs.REPORT}
    return names == wanted.keys() - {jobs.REPORT} and all(
        found[name] == wanted[name] or (name.endswith(".npz") and unpacked(found[name]) == unpacked(wanted[name]))
        for name in names
    )


def unpacked(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        return {name: members.read(name) for name in members.namelist()}


def badly_ended(ended: Ended, how: str, together: bool = False) -> str:
    """What is wrong with a run's exit code and with what it said; "" if nothing is."""
    # Threads do not always make the same number of calls, so that the last ones may not come.
    codes = (0, -signal.SIGKILL) if how == "SIGKILL" else (0, 130) if how.startswith("SIG") else (0, 1)
    if together:
        # It may have ended before its call came, because another one was at the same; or its call was among the last,
        # when it had said so and a signal ends it as any program.
        codes = (0, 1, *codes, *([-signal.SIGTERM] if how == "SIGTERM" and ended.printed else []))
    if ended.code not in codes:
        return f"ended with {ended.code}: {ended.printed}"
    if how.startswith("SIG") and "Exception ignored in" in ended.printed and "KeyboardInterrupt" in ended.printed:
        # Python itself loses Ctrl-C while it runs a finalizer: it prints that, and the run goes on.
        return ""
    said = [line for line in ended.printed.splitlines() if not any(also in line for also in _ALSO)]
    is_one = len(said) == (ended.code != 0) and all(line.startswith("gpucast") for line in said)
    return "" if is_one or ended.code < 0 else f"{ended.code}, and said {ended.printed!r}"


class Case:
    """A job in a scratch folder of its own, run once without a fault."""

    def __init__(self, job: str, scratch: Path, shim: Shim) -> None:
        self._scratch, self.argv = scratch, jobs.argv(job)
        self._number = 0
        self._made = scratch / "made"
        self._made.mkdir(parents=True)
        os.chdir(self._made)
        jobs.make(job)
        self.before = contents(self._made)
        #: The calls that it makes.
        self.names = self._whole(shim)

    def fresh(self) -> Path:
        """The working folder from now on: a new copy of the job's files."""
        self._number += 1
        where = self._scratch / str(self._number)
        shutil.copytree(self._made, where)
        os.chdir(where)
        return where

    def _whole(self, shim: Shim) -> list[str]:
        """Run it without a fault; the calls that were made, as the forks make them, with all modules loaded."""
        for _ in range(2):
            where = self.fresh()
            shim.arm()
            code = cli.main(self.argv)
            names = shim.disarm()
            assert code == 0, code
            self.after = contents(where)
        return names

    def badly_left(self, ended: Ended, left: dict[str, bytes], is_undoable: bool) -> str:
        """What is wrong with what a run left, which could remove what is temporary; "" if nothing is."""
        if not is_undoable:
            # Nobody may be left to remove the temporary file of a report.
            left = {name: data for name, data in left.items() if not name.startswith(f".{jobs.REPORT}")}
        if ended.code == 0 or _WHOLE in ended.printed:
            return "" if is_same(left, self.after) else f"success, and left {sorted(left)}"
        # It may end between the two renames of a model with external data; the next run completes it.
        data = {name: data for name, data in self.after.items() if name.endswith(".data")}
        allowed = [self.before, self.before | data, self.after]
        return "" if any(is_same(left, files) for files in allowed) else f"{ended.code}, and left {sorted(left)}"

    def again(self, where: Path, left: dict[str, bytes], how: str = "") -> str:
        """Run it again where it ended; what is wrong then, also that it did not go on with what a kill had left."""
        finished, resumed, carry_out = finished_bytes(where), [0], conversion.run

        def noted(plan: Any, options: Any, outcome: conversion.Outcome, advance: Any) -> None:
            carry_out(plan, options, outcome, advance)
            resumed.append(outcome.resumed)

        conversion.run = noted
        code = cli.main(self.argv)
        conversion.run = carry_out
        if how == "SIGKILL" and resumed[-1] < finished and not is_same(left, self.after):
            return f"{finished} bytes were finished, {resumed[-1]} were gone on with"
        found = {name: data for name, data in contents(where).items() if not name.startswith(f".{jobs.REPORT}")}
        # What is whole may be refused, as it is after a success: folders and external data are never replaced.
        if code == 1 and left == found and is_same(left, self.after):
            return ""
        # A file that was converted onto itself is converted again.
        is_last = code == 0 and (is_same(found, self.after) or is_same(left, self.after))
        return "" if is_last and not any(map(is_unfinished, found)) else f"went on with {code} to {sorted(found)}"


def case(tried: Case, job: str, how: str, share: float, lasting: bool, shim: Shim) -> dict[str, Any]:
    chosen = numbers(tried.names, how)
    chosen = sorted(random.Random(f"{job} {how}").sample(chosen, max(1, round(share * len(chosen)))))
    problems = []
    for first in chosen:
        where = tried.fresh()
        ended = Run(tried.argv, shim, how, first, 1 << 30 if lasting else first).ended()
        left = {name: data for name, data in contents(where).items() if not is_unfinished(name)}
        is_undoable = not lasting and how != "SIGKILL"
        found = badly_ended(ended, how) or tried.badly_left(ended, left, is_undoable) or tried.again(where, left, how)
        if found:
            problems.append(f"{job}: {how} at call {first} ({tried.names[first]}): {found}")
        shutil.rmtree(where)
    return {"calls": len(tried.names), "runs": len(chosen), "problems": problems}


def together(tried: Case, job: str, processes: int, runs: int, shim: Shim) -> dict[str, Any]:
    """The job by several processes at once, all but one of them with a fault or a signal somewhere."""
    rng, problems = random.Random(job), []
    for number in range(runs):
        where = tried.fresh()
        hows = ["EIO", *(rng.choice(list(HOWS)) for _ in range(processes - 1))]
        calls = [-1, *(rng.choice(numbers(tried.names, how)) for how in hows[1:])]
        begun = [Run(tried.argv, shim, how, call, call) for how, call in zip(hows, calls, strict=True)]
        ended = [run.ended() for run in begun]
        left = {name: data for name, data in contents(where).items() if not is_unfinished(name)}
        found = [badly_ended(one, how, together=True) for one, how in zip(ended, hows, strict=True)]
        found += [tried.badly_left(one, left, is_undoable=False) for one in ended]
        found.append(tried.again(where, left))
        problems += [f"{job} {number}, {hows} at {calls}: {one}" for one in found if one]
        shutil.rmtree(where)
    return {"calls": len(tried.names), "runs": runs * processes, "problems": problems}


_KEY, _VALUE = "k" * 64, bytes(range(256)) * 40


def kept(folder: str) -> str:
    """Put a value in a cache of kernels, and get it with another one: a right value, or nothing."""
    Cache(folder).put(_KEY, _VALUE)
    other = Cache(folder)
    other.usage()
    return "" if other.get(_KEY) in (None, _VALUE) else "another value"


def cache(how: str, share: float, shim: Shim) -> dict[str, Any]:
    """The cache of kernels with faults: it is as good as none, never an error, and the next process has a whole one."""

    def faulted() -> str:
        shim.arm(how, at, at)
        try:
            return kept(folder)
        finally:
            shim.disarm()

    with tempfile.TemporaryDirectory() as scratch:
        shim.arm()
        assert kept(f"{scratch}/first") == ""
        names, problems = shim.disarm(), []
        chosen = numbers(names, how)
        chosen = random.Random(how).sample(chosen, max(1, round(share * len(chosen))))
        for at in chosen:
            folder = f"{scratch}/{at}"
            said, status = forks.forked(faulted)
            found = said or ("" if status in (0, -signal.SIGKILL) else f"ended with {status}") or kept(folder)
            if found or Cache(folder).get(_KEY) != _VALUE:
                problems.append(f"cache: {how} at call {at} ({names[at]}): {found or 'was not kept in the next run'}")
    return {"calls": len(names), "runs": len(chosen), "problems": problems}


def main(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made: dict[str, Case] = {}
    shim, results = Shim(), []
    with tempfile.TemporaryDirectory() as scratch:
        for told in cases:
            what, job = told.pop("what"), told.get("job")
            if what == "cache":
                results.append(cache(**told, shim=shim))
                continue
            if job not in made:
                made[job] = Case(job, Path(scratch).resolve() / job, shim)
            results.append({"case": case, "together": together}[what](made[job], **told, shim=shim))
        os.chdir("/")
    return results


if __name__ == "__main__":
    # What is started from here has no part in it.
    os.environ.pop("LD_PRELOAD")
    results, sys.stdout = sys.stdout, sys.stderr
    json.dump(main(json.load(sys.stdin)), results)
