# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from gpucast.convert.streaming import pieces


@pytest.fixture
def several_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty current folder, where small tensors have several pieces."""
    monkeypatch.setattr(pieces, "_PIECE", 1 << 12)
    return folder
