# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from functools import lru_cache

import pytest

from bench.static import catalog


@pytest.fixture(scope="session", autouse=True)
def one_list_of_all_kernels() -> None:
    """It takes half a minute to make: the processes of a run share one."""
    try:
        import built_kernels
    except ImportError:
        return
    make = catalog._listed.__wrapped__
    catalog._listed = lru_cache(maxsize=1)(lambda: built_kernels.shared("all kernels", make))
