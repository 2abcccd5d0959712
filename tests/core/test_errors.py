# SPDX-License-Identifier: Apache-2.0
"""Texts of strangers in messages: nothing in them reaches a terminal, a page or a log as more than text."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from gpucast import files
from gpucast.cli import main
from gpucast.convert.losses.counts import TooMuchLost
from gpucast.convert.running.cluster import ClusterError
from gpucast.convert.running.work import Busy
from gpucast.core.errors import printable, printable_lines
from gpucast.files import FileError

#: Clears the screen, sets the title, turns the text around, is no character, forges a line.
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egpj\u2028\udc80\r\ngpucast convert: all is well"
SHOWN = r"\x1b[2J\x1b]0;owned\x07\x9b31m\u202egpj\u2028\udc80\r\ngpucast convert: all is well"


def test_unprintable_characters_are_escaped() -> None:
    assert printable(EVIL) == SHOWN
    assert printable(SHOWN) == SHOWN
    assert printable_lines(f"a\n{EVIL}") == "a\n" + SHOWN.replace(r"\n", "\n")
    for text in ("model.safetensors", "名前 é ÿ", ""):
        assert printable(text) is text
    for kind in (FileError, Busy, TooMuchLost, ClusterError):
        error = kind(f"x: {EVIL}")
        assert str(error) == f"x: {SHOWN}"
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (kind, str(error))


def clean(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert all(line.isprintable() for line in text.split("\n")), text
        assert not any(line.startswith("gpucast convert: all is well") for line in text.split("\n"))
    return printed.out + printed.err


def test_names_of_tensors_do_not_reach_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = EVIL.replace("\udc80", "")
    files.save("in.safetensors", {name: np.float32([1e30, 1, 1]), "y": np.int32([1])})
    for argv in (
        ["in.safetensors", "out.safetensors", "--to", "FLOAT16"],
        ["in.safetensors", "out.npy", "--to", "FLOAT16"],
        ["in.safetensors", "out.safetensors", "--to", "FLOAT16", "--dry-run"],
        ["in.safetensors", "out.safetensors", "--to", "FLOAT16", "--exclude", "*\n*"],
        ["in.safetensors", "out.safetensors", "--to", "BFLOAT16", "--report", "report.html"],
        ["in.safetensors", "all.safetensors", "--to", "BFLOAT16", "--report", "report.json"],
    ):
        main(["convert", *argv])
        clean(capsys)
    assert "all is well" in Path("report.html").read_text()
    for report in ("report.html", "report.json"):
        assert all(line.isprintable() for line in Path(report).read_text().replace("\u00a0", " ").split("\n")), report
