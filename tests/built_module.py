# SPDX-License-Identifier: Apache-2.0
"""The extension module of another build, in the place of the one that gpucast would import."""

from __future__ import annotations

import importlib.util
import sys


def load(path: str) -> None:
    """Load the module from a file, before gpucast."""
    assert "gpucast" not in sys.modules
    spec = importlib.util.spec_from_file_location("gpucast._host", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["gpucast._host"] = module
