# SPDX-License-Identifier: Apache-2.0
"""A progress bar for long work, if tqdm is installed and stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def progress_bar(
    total: int, wanted: bool, unit: str = "B", stage: Callable[[], str] | None = None
) -> Iterator[Callable[[int], object]]:
    """A function that is called with the units done since its last call, 0 where another `stage` begins, which the bar
    then names. The bar appears on stderr after a second."""
    bar_class = _tqdm() if wanted and sys.stderr.isatty() else None
    if bar_class is None:
        yield lambda done: None
        return
    with bar_class(total=total, unit=unit, unit_scale=True, delay=1, leave=False, file=sys.stderr) as bar:

        def advance(done: int) -> None:
            if stage is not None and stage() != bar.desc:
                bar.set_description_str(stage(), refresh=not done)
            bar.update(done)

        yield advance


def _tqdm() -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm
