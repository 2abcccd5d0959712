# SPDX-License-Identifier: Apache-2.0
"""Every public function, each of its arguments replaced by every wrong value: documented errors, nothing changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz import programs
from fuzz.wrong_arguments import CALLS, WRONG

_DOCUMENTED = (TypeError, ValueError, OverflowError, RuntimeError)


def image(value: Any) -> Any:
    """The bytes of the arrays in an argument."""
    if isinstance(value, dict):
        return [image(part) for part in value.values()]
    if isinstance(value, list):
        return [image(part) for part in value if part is not value]
    value = getattr(value, "data", value) if hasattr(value, "bits") else value
    return value.tobytes() if isinstance(value, np.ndarray) and value.dtype != object else None


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_have_documented_errors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(tmp_path / "cache"))
    call = CALLS[name]
    call.function(**call.arguments())
    refused, problems = 0, []
    for argument in call.names():
        for wrong, made in WRONG.items():
            given = call.arguments() | {argument: made()}
            before = image(given)
            try:
                call.function(**given)
            except (*_DOCUMENTED, *call.also) as error:
                refused += 1
                if not str(error) or image(given) != before:
                    problems.append(f"{argument}={wrong}: {error!r}, and something was written")
            except Exception as error:
                problems.append(f"{argument}={wrong}: {type(error).__name__}: {error}")
    programs.noted(name, refused=refused)
    assert not problems, "\n".join(problems)
    assert refused > 0
