# SPDX-License-Identifier: Apache-2.0
"""What is quick of ``python -m bench.rehearse``: some parts of both calls on stand-ins, in a copy without git. The
sanitizer and rivals that stall or die are in the whole of it, but for one that dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import gpu_archive, rehearse
from bench.rehearse import Call, problems, unreadable
from bench.revision import VARIABLE

#: Far more than what a busy machine needs; nothing waits for it.
SECONDS = 5000.0


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Call, Call, str]:
    """The copy, two calls, of which the second goes on from the first's archive, and the commit that is named."""
    folder = tmp_path_factory.mktemp("rehearsal")
    root = rehearse.copied(folder)
    named = rehearse.environment(root, folder)[VARIABLE]
    # The calls share the kernels that are compiled, which takes longer than all else.
    kernels = {"GPUCAST_CACHE_DIR": str(folder / "kernels")}
    first = rehearse.call(root, folder / "first", ["layouts", "many"], SECONDS, kernels)
    again = {"GPU_ARCHIVE": str(first.archive), rehearse.RIVALS: "well", **kernels}
    return root, first, rehearse.call(root, folder / "again", ["many", "bench"], SECONDS, again), named


def test_parts_run_and_one_that_dies_is_named(calls: tuple[Path, Call, Call, str]) -> None:
    root, first, _, named = calls
    assert not (root / ".git").exists()
    wanted = {"layouts": ("passed", "200 of 200"), "many": rehearse.SECOND["many"]}
    assert problems(first, wanted, named) == []
    # The real compiler has no word against what it reached.
    assert "FAILED" not in first.summary["compile"], first.summary


def test_a_later_call_goes_on(calls: tuple[Path, Call, Call, str]) -> None:
    _, first, again, named = calls
    assert problems(again, {"many": ("passed", "8 of 8"), "bench": ("passed", "")}, named) == []
    assert rehearse.gone_on_with(again, first) == [] and rehearse.done_twice(again.files()) == []


def test_the_results_go_where_the_page_says(calls: tuple[Path, Call, Call, str], tmp_path: Path) -> None:
    root, _, again, _ = calls
    assert rehearse.placed(root, again.archive, rehearse.environment(root, tmp_path)) == []


# ---- the checks themselves ----


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("a.log", "commit abc", ""),
        ("a.log", "commit def", "does not name the commit"),
        ("a.json", "{", "Expecting property name"),
        ("a.png", "PNG", "no picture"),
        ("a.md", "", "empty"),
        ("a.jsonl", '{"kind":"plan","names":[]}', "begin with a session"),
        ("a.jsonl", '{"kind":"session","commit":"abc"}', "lacks arch, code, cuda, date, driver, gpu"),
        ("gpu-a.jsonl", '{"kind":"session","commit":"def","date":"d","code":"c","facts":{"name":"n"}}', "['def']"),
        ("gpu-a.jsonl", '{"kind":"session","commit":"abc","date":"d","code":"c","facts":{"name":"n"}}', ""),
    ],
)
def test_files_that_cannot_be_read_are_named(name: str, text: str, wrong: str) -> None:
    found = unreadable(name, text.encode(), "abc")
    assert wrong in "; ".join(found) if wrong else found == []


def test_what_a_call_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / f"many-gpu-{rehearse.GPU}-x.log").write_text("commit abc")
    gpu_archive.pack(tmp_path / "a.tar.gz", tmp_path.glob("*.log"))
    done = Call(0, {"many": "passed, 1 s: 8 of 8", "quick": "IN PART, 1 s: 1 of 2"}, tmp_path / "a.tar.gz", 1.0)
    found = problems(done, {"many": ("passed", "8 of 8"), "quick": ("passed", ""), "tests": ("FAILED", "")}, "abc")
    for text in (
        "quick: IN PART, 1 s: 1 of 2; expected passed", "tests: (none)", "the exit code is 0",
        "many: its lines", "quick: its log", "the summary is not",
    ):  # fmt: skip
        assert any(text in problem for problem in found), (text, found)
    assert not any(problem.startswith(("many: passed", "many: its log")) for problem in found)


def test_work_that_is_lost_or_done_twice_is_named(tmp_path: Path) -> None:
    lines = '{"kind":"done","name":"a","failed":""}\n'
    calls = []
    for number, text in enumerate((lines, "", lines + lines)):
        path = tmp_path / "many-x.jsonl"
        path.write_text(text)
        archive = tmp_path / f"{number}.tar.gz"
        gpu_archive.pack(archive, [path])
        calls.append(Call(0, {}, archive, 1.0))
    first, lost, twice = calls
    assert rehearse.gone_on_with(twice, first) == [] and len(rehearse.gone_on_with(lost, first)) == 1
    assert rehearse.done_twice(first.files()) == []
    assert rehearse.done_twice(twice.files()) == ["many-x.jsonl: 1 cases are done twice"]
