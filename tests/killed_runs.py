# SPDX-License-Identifier: Apache-2.0
"""Conversions killed with SIGKILL at chosen points, and run again: a program of its own, which forks once for each run.

Reads a list of cases (JSON) from stdin, each {"argv", "folder", "seed", "points"}; writes for each what it found. A
point is the number of calls (of Python or C functions) that a run has made: so every moment can be hit, and hit again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from conversions import contents, entered_copy
from gpucast import checkpoints, cli


def run(argv: list[str], kill_at: int | None = None) -> tuple[int, int]:
    """Fork and convert; the status, and the calls that were made or, after a resumption, the bytes found finished."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        calls = 0

        def count(frame: Any, event: str, arg: Any) -> None:
            nonlocal calls
            if event in ("call", "c_call"):
                if calls == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls += 1

        found = []
        carry_out = checkpoints.run

        def carried_out(plan: Any, options: Any, outcome: checkpoints.Outcome, advance: Any) -> None:
            found.append(outcome)
            if kill_at is not None:
                sys.setprofile(count)
            carry_out(plan, options, outcome, advance)
            sys.setprofile(None)

        checkpoints.run = carried_out
        code = cli.main(argv)
        told = calls if kill_at is not None else found[0].resumed if found else 0
        os.write(writer, str(told).encode())
        os._exit(code)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    told = os.read(reader, 100)
    os.close(reader)
    return status, int(told or b"0")


def case(argv: list[str], folder: Path, seed: str, points: int) -> dict[str, Any]:
    """Kill a conversion at random points, see what is left, and finish it."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:

        def fresh(name: str) -> Path:
            return entered_copy(folder, Path(scratch) / name)

        whole = fresh("whole")
        before = contents(whole)
        status, calls = run(argv, kill_at=-1)
        assert status == 0, status
        after = contents(whole)
        chosen = random.Random(seed)
        problems, resumed = [], 0
        for number in range(points):
            kill_at = chosen.randrange(calls)
            where = fresh(str(number))
            status, _ = run(argv, kill_at)
            if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
                problems.append(f"{kill_at}: ended with {status}")
            left = {name: data for name, data in contents(where).items() if ".partial" not in Path(name).parts[0]}
            # Each file as it was or as it is to be; the target all at once.
            if left not in (before, after) and not _half_published(left, before, after):
                problems.append(f"{kill_at}: left {sorted(left)}")
            # When all is in place, a file that was converted onto itself is converted again. Formats whose tensors have
            # no fixed places begin anew.
            begins_anew = left == after or argv[2].endswith((".npz", ".onnx"))
            done = 0 if begins_anew else _finished(where)
            if left == after and not list(where.glob("*.partial/job.json")):
                # Nothing was left to do but to remove an empty folder.
                shutil.rmtree(where)
                continue
            status, found = run(argv)
            resumed += found
            if status or contents(where) != after:
                problems.append(f"{kill_at}: went on with status {status} to {sorted(contents(where))}")
            if found < done:
                problems.append(f"{kill_at}: {done} bytes were finished, {found} were found")
            shutil.rmtree(where)
        return {"calls": calls, "problems": problems, "resumed": resumed}


def _half_published(left: dict[str, bytes], before: dict[str, bytes], after: dict[str, bytes]) -> bool:
    """External data has its name already, the model that refers to it not yet."""
    more = {name for name in left if name not in before}
    return more == {"out.onnx.data"} and left == before | {name: after[name] for name in more}


def _finished(where: Path) -> int:
    """Bytes of the source that the journals call finished."""
    lines = [line for path in where.glob("*.partial/work/*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    return sum(json.loads(line).get("bytes_in", 0) for line in lines)


if __name__ == "__main__":
    json.dump([case(c["argv"], Path(c["folder"]), c["seed"], c["points"]) for c in json.load(sys.stdin)], sys.stdout)
