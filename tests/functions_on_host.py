# SPDX-License-Identifier: Apache-2.0
"""Texts of `gpucast.device_functions`, built by a C++ compiler as a user does, and called with arrays of codes."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from gpucast.core.dtypes import DType
from gpucast.core.fuse import Random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule
from gpucast.parity import host_build
from gpucast.parity.cases import Case
from gpucast.user_kernels.device_functions import WIDTHS, held_as

#: The random words of the functions that take some.
RANDOM = Random(seed=7, offset=2**33 + 1)


def build(text: str, folder: Path, arch: int = 90) -> ctypes.CDLL:
    """A library with the C functions of a text, where the GPU's instructions are those of an architecture."""
    # Of its own: a path that is loaded already would give the library that was there before.
    folder = Path(tempfile.mkdtemp(dir=folder))
    path, library = folder / "functions.cpp", folder / "functions.so"
    path.write_text(text)
    options = ["-std=c++17", "-O0", "-w", "-fPIC", "-shared", f"-DGPUCAST_ARCH={10 * arch}"]
    subprocess.run([*host_build.compiler(), *options, "-o", str(library), str(path)], check=True)
    return ctypes.CDLL(str(library))


def items_of(chosen: Iterable[Case]) -> list[tuple[str, str, dict[str, Any]]]:
    """Cases as `device_functions` takes them."""
    kept = ({name: one for name, one in case.attributes if name not in Random._fields} for case in chosen)
    return [(case.rule.src.name, case.rule.dst.name, more) for case, more in zip(chosen, kept, strict=True)]


def loops(rules: Iterable[CastRule]) -> str:
    """C functions ``run_NAME(x, y, n, words)`` that call the functions of rules, for each width. One value at random
    has its word, several have those of a stream."""
    random = f"gpucast::Random{{{RANDOM.seed}ull, {RANDOM.offset}ull}}"
    return "".join(
        f"""
extern "C" void run_{rule.function}{end}(
    const {held_as(rule.src, count)}* x, {held_as(rule.dst, count)}* y, long long n, const unsigned int* words) {{
    for (long long i = 0; i < n; ++i) {{
        y[i] = {rule.function}{end}(x[i]{_at_random(rule, count, random)});
    }}
}}
"""
        for rule in rules
        for end, count in WIDTHS.items()
    )


def _at_random(rule: CastRule, count: int, random: str) -> str:
    if rule.rounding != STOCHASTIC:
        return ""
    return ", words[i]" if count == 1 else f", {random}, i * {count}"


def word(dtype: DType, count: int) -> np.dtype[Any]:
    """What `held_as` holds so many codes in; of more than 16 bits each."""
    if dtype.bits > 16:
        return dtype.code_numpy
    return np.dtype(f"u{next(size for size in (1, 2, 4, 8) if 8 * size >= count * dtype.bits)}")


def packed(codes: np.ndarray, dtype: DType, count: int) -> np.ndarray:
    """Codes as `held_as` holds so many; the bits that nobody looks at are set."""
    if dtype.bits > 16:
        return codes
    words = np.full(codes.size // count, (2**64 - 1) << (count * dtype.bits) & (2**64 - 1), np.uint64)
    for i in range(count):
        words |= codes[i::count].astype(np.uint64) << np.uint64(i * dtype.bits)
    return words.astype(word(dtype, count))


def unpacked(words: np.ndarray, dtype: DType, count: int) -> np.ndarray:
    """The codes that so many are held in."""
    if dtype.bits > 16:
        return words
    lanes = [words.astype(np.uint64) >> np.uint64(i * dtype.bits) for i in range(count)]
    # Of the last one all bits: those above it must be zero.
    lanes[:-1] = [lane & np.uint64(dtype.code_mask) for lane in lanes[:-1]]
    return np.stack(lanes, axis=1).reshape(-1)


def run(library: ctypes.CDLL, rule: CastRule, codes: np.ndarray, end: str, words: np.ndarray) -> np.ndarray:
    """What a function makes of codes, a multiple of four where it takes several, and of their random words."""
    count = WIDTHS[end]
    # BOOL is held as a bool, which is 0 or 1.
    x = codes if rule.src.family == "bool" and count == 1 else packed(codes, rule.src, count)
    y = np.empty(codes.size if rule.dst.bits > 16 else codes.size // count, word(rule.dst, count))
    function: Any = library[f"run_{rule.function}{end}"]
    source, target, at_random = (ctypes.c_void_p(array.ctypes.data) for array in (x, y, words))
    function(source, target, ctypes.c_longlong(codes.size // count), at_random)
    return unpacked(y, rule.dst, count)


def wanted(rule: CastRule, codes: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """What the reference makes of codes."""
    random = RANDOM._asdict() if rule.rounding == STOCHASTIC else {}
    found = gpucast.reference.cast(codes.view(rule.src.numpy), rule.dst, **attributes, **random)
    return found.view(rule.dst.code_numpy)
