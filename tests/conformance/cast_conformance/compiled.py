# SPDX-License-Identifier: Apache-2.0
"""For adapters in C and C++: compile a text to a library whose functions convert an array of codes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from cast_conformance.adapters import Refused
from cast_conformance.numbers import codes_dtype
from cast_conformance.reader import manifest


def library(text: str, command: Sequence[str]) -> ctypes.CDLL:
    """The library of a source, which the command's compiler reads from its standard input."""
    with tempfile.TemporaryDirectory(prefix="cast_conformance_") as folder:
        path = os.path.join(folder, "casts.so")
        try:
            done = subprocess.run(
                [*command, "-shared", "-fPIC", "-o", path, "-"], input=text, text=True, capture_output=True, check=False
            )
        except FileNotFoundError as error:
            raise ImportError(f"there is no compiler: {error}") from None
        if done.returncode:
            raise ImportError(f"{command[0]}: {done.stderr[:2000]}")
        return ctypes.CDLL(path)


def call(loaded: ctypes.CDLL, function: str, codes: Any, dst: str) -> Any:
    """Run ``function(input, output, count)``; `Refused` where the library has none."""
    try:
        run = loaded[function]
    except AttributeError:
        raise Refused("no such conversion") from None
    codes = np.ascontiguousarray(codes)
    result = np.zeros(codes.size, codes_dtype(manifest()["types"][dst]))
    run(ctypes.c_void_p(codes.ctypes.data), ctypes.c_void_p(result.ctypes.data), ctypes.c_long(codes.size))
    return result
