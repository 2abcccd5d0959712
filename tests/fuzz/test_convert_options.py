# SPDX-License-Identifier: Apache-2.0
"""`gpucast convert` with any options: done, one line of error, or wrong usage; and then the source is as it was."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz import jobs, programs
from gpucast import cli
from gpucast.convert.scales.scale_styles import STYLES
from gpucast.convert.scales.scaling import SCALES
from gpucast.core.dtypes import DTYPES

_NAMES = st.sampled_from([dtype.name for dtype in DTYPES] + ["float7", "", "f4", "bf16", "\x1b[2J"])
_PATTERNS = st.sampled_from(["*", "x", "y.*", "*.weight", "[", "", "no such", "\n"])
_NUMBERS = st.sampled_from(["0", "1", "-1", str(2**64 - 1), str(2**64), "9" * 5000, "x", "", "1.5"])
_PATHS = st.sampled_from([
    "in.safetensors", "in.npz", "in", "in/", ".", "..", "", "out.safetensors", "out.npz", "out.npy", "out.pb", "out",
    "out.onnx", "in/model.safetensors.index.json", "missing", "no/folder.npz", "x" * 300, "out.txt", "in/out",
    "\x1b[2J.npz",
    "fifo.npz", "in.npz/x.npz",
])  # fmt: skip
_OPTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("--from"), _NAMES),
        st.tuples(st.sampled_from(["--include", "--exclude"]), _PATTERNS),
        st.tuples(st.just("--rule"), st.builds("{}={}".format, _PATTERNS, _NAMES | st.just("keep"))),
        st.tuples(st.just("--scale"), st.sampled_from([*SCALES, "junk"])),
        st.tuples(st.just("--style"), st.sampled_from([*STYLES, "junk"])),
        st.tuples(st.just("--rounding"), st.sampled_from(["truncate", "nearest_away", "stochastic", "junk"])),
        st.tuples(st.just("--overflow"), st.sampled_from(["wrap", "saturate", "junk"])),
        st.tuples(st.just("--round-mode"), st.sampled_from(["up", "down", "nearest", "junk"])),
        st.tuples(st.sampled_from(["--seed", "--opset"]), _NUMBERS),
        st.tuples(st.just("--shard-size"), _NUMBERS | st.sampled_from(["1KB", "5GB", "1iB", "2GiB"])),
        st.tuples(st.just("--device"), st.sampled_from(["cpu", "cuda", "cuda:7", "tpu"])),
        st.tuples(st.just("--shard"), st.sampled_from(["0/1", "0/2", "1/2", "2/2", "x", "0/0", "auto"])),
        st.tuples(st.just("--report"), _PATHS | st.sampled_from(["report.json", "report.html"])),
        st.tuples(st.sampled_from([
            "--allow-loss", "--dry-run", "--verify", "--restart", "--json", "--no-progress", "--quiet", "--no-saturate",
            "--overwrite",
        ])),
    ),
    max_size=4,
)  # fmt: skip


def ended(argv: list[str]) -> tuple[int, str]:
    """The exit code of the command, and its error."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            code = cli.main(argv)
        except SystemExit as wrong_usage:
            code = int(wrong_usage.code or 0)
    # The usage is printed before the error.
    errors = [line for line in said.getvalue().splitlines() if line.startswith("gpucast")]
    assert len(errors) == (code != 0), said.getvalue()
    return code, "".join(errors)


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_any_options_end_in_a_result_or_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: Counter[int] = Counter()
    monkeypatch.chdir(tmp_path)
    for job in ("folder", "npz", "safetensors"):
        jobs.make(job)
    os.mkfifo("fifo.npz")
    made = contents()

    # Few options that are drawn go together; one that is a result is there for certain.
    @example("in.safetensors", "out.npz", "FLOAT16", [])
    @given(_PATHS, _PATHS, _NAMES, _OPTIONS)
    def convert(source: str, target: str, to: str, options: list[tuple[str, ...]]) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(shutil.copytree(tmp_path, f"{scratch}/work", ignore=lambda *_: ["fifo.npz"]))
            os.mkfifo("fifo.npz")
            code, error = ended(["convert", source, target, "--to", to, *(part for one in options for part in one)])
            codes[code] += 1
            assert code in (0, 1, 2)
            assert error.isprintable()
            found = contents()
            changed = {name for name in made if found.get(name) != made[name]}
            reports = {one[1] for one in options if one[0] == "--report"}
            assert changed <= reports | ({target} if code == 0 else set())
            assert os.listdir("..") == ["work"]
            os.chdir(tmp_path)

    convert()
    programs.noted("convert", **{f"ended with {code}": count for code, count in codes.items()})
    assert codes.keys() == {0, 1, 2}
