# SPDX-License-Identifier: Apache-2.0
"""Every call of the system that a small conversion makes fails, falls short, or is the last: complete or undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuzz import jobs, programs, shim

#: What is tried at a call, whether it lasts, and the share of the calls that is tried in each run of the tests.
KINDS = (
    (("EIO", "ENOSPC", "EACCES", "EINTR", "short"), False, 0.006),
    (("EIO", "ENOSPC", "EACCES"), True, 0.003),
    (("SIGKILL", "SIGTERM", "SIGINT"), False, 0.006),
)


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a program that has the shim."""
    library = shim.build(tmp_path_factory.mktemp("shim"))
    if library is None:
        pytest.skip("no C compiler, or no GNU C library to put the shim in front of")
    return {"LD_PRELOAD": str(library)}


def tried(cases: list[dict[str, Any]], preloaded: dict[str, str], scratch: Path) -> list[dict[str, Any]]:
    """What the cases gave, of which none had a problem."""
    results: list[dict[str, Any]] = programs.run("faulted_runs", cases, **preloaded, TMPDIR=str(scratch))
    programs.noted("faults", runs=sum(result["runs"] for result in results))
    problems = [problem for result in results for problem in result["problems"]]
    assert not problems, "\n".join(problems)
    return results


def test_a_run_stopped_at_any_call_is_complete_or_undone(
    preloaded: dict[str, str], tmp_path: Path, exhaustive: bool
) -> None:
    known = [
        {"what": "case", "share": 1.0 if exhaustive else share, "lasting": lasting, "job": job, "how": how}
        for hows, lasting, share in KINDS
        for job in jobs.COMMANDS
        for how in hows
    ]
    results = tried(known, preloaded, tmp_path)
    # That the calls are seen: each job opens, reads, writes and renames.
    assert all(result["calls"] > 200 for result in results)


def test_a_run_killed_before_every_change_of_a_file_goes_on(preloaded: dict[str, str], tmp_path: Path) -> None:
    case = {"what": "case", "job": "folder", "how": "SIGKILL", "share": 1.0, "lasting": False}
    (result,) = tried([case], preloaded, tmp_path)
    assert result["runs"] > 100


def test_processes_that_do_one_job_share_it_or_give_way(
    preloaded: dict[str, str], tmp_path: Path, exhaustive: bool
) -> None:
    # A file that is converted onto itself is another one for who comes later.
    done = sorted(jobs.COMMANDS.keys() - {"itself"})
    known = {"what": "together", "runs": 300 if exhaustive else 2}
    tried([known | {"job": job, "processes": processes} for job in done for processes in (2, 4)], preloaded, tmp_path)


def test_a_cache_that_fails_is_as_good_as_none(preloaded: dict[str, str], tmp_path: Path, exhaustive: bool) -> None:
    tmp_path.chmod(0o700)
    known = {"what": "cache", "share": 1.0 if exhaustive else 0.05}
    hows = ("EIO", "ENOSPC", "EACCES", "EINTR", "short", "SIGKILL")
    tried([known | {"how": how} for how in hows], preloaded, tmp_path)
