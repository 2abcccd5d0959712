# SPDX-License-Identifier: Apache-2.0
"""Casts of clang (``CLANG``, with its options, else clang): ``_Float16`` and ``__bf16``."""

from __future__ import annotations

import os

from cast_conformance.adapters.c import Compiler

_CLANG = Compiler(os.environ.get("CLANG", "clang"))
version, cast = _CLANG.version, _CLANG.cast
