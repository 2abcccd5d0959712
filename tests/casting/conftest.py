# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpucast.casting import plans


@pytest.fixture
def no_plans() -> None:
    plans.forget()
