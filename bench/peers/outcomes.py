# SPDX-License-Identifier: Apache-2.0
"""What a suite of others found, in the form of bench/results/suites.json; code of others as a library."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NDArray = np.ndarray[Any, Any]


@dataclass
class Outcome:
    suite: str
    version: str
    #: The claim of the ledger that it belongs to, such as "casts", "text" or "types".
    kind: str
    cases: int = 0
    #: Cases that differ for no reason, and those that may.
    differ: int = 0
    legal: int = 0
    #: Why these may, and the first one of the others.
    why: str = ""
    first: str = ""
    licence: str = ""

    def count(self, differ: NDArray, given: Any, what: str, legal: NDArray | None = None) -> None:
        """Add cases: which of them differ, what was given, and which may differ."""
        legal = np.zeros(differ.shape, bool) if legal is None else legal
        self.cases += differ.size
        self.legal += int((differ & legal).sum())
        wrong = np.flatnonzero(differ & ~legal)
        self.differ += wrong.size
        if wrong.size and not self.first:
            self.first = f"{what}: {given[int(wrong[0])]}"

    def compare(self, theirs: Any, ours: Any, given: Any, what: str, legal: NDArray | None = None) -> None:
        """Add pairs, which differ unless they are the same number, NaN, or the same object."""
        differ = [a != b and not (a != a and b != b) for a, b in zip(theirs, ours, strict=True)]
        self.count(np.array(differ, bool), given, what, legal)


def compiled(text: str, *include: Path | str, standard: str = "c++17") -> ctypes.CDLL:
    """C++ as a library, with the headers of some folders."""
    with tempfile.TemporaryDirectory() as where:
        Path(where, "a.cpp").write_text(text, encoding="utf-8")
        command = [os.environ.get("CXX", "c++"), f"-std={standard}", "-O2", "-w", "-shared", "-fPIC"]
        folders = [f"-I{folder}" for folder in include]
        subprocess.run([*command, *folders, "-o", f"{where}/a.so", f"{where}/a.cpp"], check=True)
        return ctypes.CDLL(f"{where}/a.so")
