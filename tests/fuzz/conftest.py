# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

#: The examples of each property in each run of the tests, and with --exhaustive. They are the same ones every time.
SOME, ALL = 150, 3_000


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile(
        "fuzz",
        max_examples=int(os.environ.get("GPUCAST_TEST_EXAMPLES", ALL if config.getoption("--exhaustive") else SOME)),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("fuzz")
