# SPDX-License-Identifier: Apache-2.0
"""The copies of NVRTC that are installed as wheels, so that tests run on each of them."""

from __future__ import annotations

import functools
import os

import pytest

from gpucast.kernel import nvrtc
from gpucast.kernel.nvrtc import Nvrtc
from gpucast.kernel.nvrtc_builtins import MAJORS, in_wheels


@functools.cache
def wheels() -> dict[int, str]:
    """Paths by CUDA major. A test fails, and says what to install, where there is none."""
    paths = {major: next(filter(os.path.isfile, in_wheels(major)), None) for major in MAJORS}
    return {major: path for major, path in paths.items() if path is not None}


@functools.cache
def load(major: int) -> Nvrtc:
    if major not in wheels():
        pytest.fail("these tests compile kernels and need NVRTC: pip install nvidia-cuda-nvrtc-cu12")
    return nvrtc.load(wheels()[major])


#: What to run a test on: every copy there is, else a copy that `load` reports as missing.
INSTALLED = sorted(wheels()) or [12]
