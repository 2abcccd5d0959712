# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run the long sweeps in full instead of a seeded sample")


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--exhaustive"))
