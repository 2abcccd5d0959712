# SPDX-License-Identifier: Apache-2.0
"""What a suite of others found, in the form of bench/results/suites.json."""

from __future__ import annotations

from dataclasses import dataclass
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

    def count(self, differ: NDArray, legal: NDArray, given: Any, what: str) -> None:
        """Add cases: which of them differ, which of these may, and what was given."""
        self.cases += differ.size
        self.legal += int((differ & legal).sum())
        wrong = np.flatnonzero(differ & ~legal)
        self.differ += wrong.size
        if wrong.size and not self.first:
            self.first = f"{what}: {given[int(wrong[0])]}"
