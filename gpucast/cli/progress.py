# SPDX-License-Identifier: Apache-2.0
"""A progress bar for long work, if tqdm is installed and stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def progress_bar(
    total: int, wanted: bool, unit: str | None = None, stage: Callable[[], str] | None = None
) -> Iterator[Callable[[int], object]]:
    """A function that is called with the units done since its last call, 0 where another `stage` begins, which the bar
    then names. The bar appears on stderr after a second.

    Units are bytes by default, and else a word such as "pairs": then Ctrl-C says how many of them are done. Those who
    count bytes say more than that themselves.
    """
    bar_class = _tqdm() if wanted and sys.stderr.isatty() else None
    done = 0
    options = {"unit": unit or "B", "unit_scale": True, "delay": 1, "leave": False, "file": sys.stderr}
    with contextlib.nullcontext() if bar_class is None else bar_class(total=total, **options) as bar:

        def advance(units: int) -> None:
            nonlocal done
            done += units
            if bar is not None:
                if stage is not None and stage() != bar.desc:
                    bar.set_description_str(stage(), refresh=not units)
                bar.update(units)

        try:
            yield advance
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{done:,} of {total:,} {unit} done" if unit else "") from None


def _tqdm() -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm
