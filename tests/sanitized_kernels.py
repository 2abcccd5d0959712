# SPDX-License-Identifier: Apache-2.0
"""Run by test_kernels_sanitized.py in a process of its own: kernels built with AddressSanitizer and UBSan.

Arrays have no bytes around them, so that any access outside is one outside of an allocation. With the argument
"overrun" the destination is one byte too short.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator

import numpy as np

import built_kernels
import gpucast
from codes import random_codes
from engines import BY_WIDTH, by_kernels, by_reference, check_contiguous, check_strided
from gpucast.kernel.cast_kernel import Shape
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.parity import host_build
from gpucast.parity.cases import NUMERIC, rules
from hard_codes import every_or_hard
from host_driver import HostDriver, elements, installed, upload


def main() -> None:
    rng = np.random.default_rng(30)
    pairs = list(itertools.product(BY_WIDTH, BY_WIDTH))
    # Every width to every width, in turn by one of both kernels, and every rule of a seeded sixtieth of the pairs.
    shapes: Iterator[Shape] = itertools.cycle(("contiguous", "strided"))
    layouts = [(rules(*pair)[0], shape) for pair, shape in zip(pairs, shapes, strict=False)]
    some = [pair for pair in itertools.product(NUMERIC, NUMERIC) if rng.random() < 1 / 60 and pair not in pairs]
    numbers = [rule for pair in some for rule in rules(*pair)]
    built_kernels.install(clean=False)
    kernels = host_build.build([*(cast_kernel(*layout) for layout in layouts), *numbers], optimize=False, sanitize=True)
    for rule in numbers:
        codes = every_or_hard(rule.src, rule.dst, 300)
        assert np.array_equal(by_kernels(kernels, rule, codes), by_reference(codes, rule)), rule
    for rule, shape in layouts:
        codes = random_codes(rule.src, 700, rng)
        if shape == "strided":
            # Rows with gaps, and rows that follow each other.
            for some in (None,) if rule.dst.packed else (np.s_[::-2, ::-1], np.s_[:7]):
                target = some and (lambda space, some=some: space[:504].reshape(14, 36)[some])
                check_strided(kernels, rule, codes[:252].reshape(36, 7).T, target, skip=1)
            continue
        wanted = by_reference(codes, rule)
        for n in range(0, 200, 3):
            src_offset, dst_offset = (int(v) for v in rng.integers(0, 17, 2))
            for skip, offset in ((0, 0), (int(rng.integers(9)), src_offset)):
                check_contiguous(kernels, rule, codes, wanted, n, skip, offset, dst_offset, guard=0)
    quantized()
    print(f"{len(layouts) + len(numbers)} kernels clean")


def quantized() -> None:
    """By the instructions of sm_100, which convert several elements into an array."""
    host_build.build = functools.partial(host_build.build, sanitize=True)
    x = np.arange(-48, 48, dtype=np.float32).reshape(2, 48)
    with installed(HostDriver(arch=100)):
        found = gpucast.quantize(upload(x), "nvfp4").dequantize()
    wanted = gpucast.quantize(x, "nvfp4").dequantize()
    assert np.array_equal(elements(found), wanted)


def overrun() -> None:
    rule = rules(*BY_WIDTH[:2])[0]
    kernels = host_build.build([rule], optimize=False, sanitize=True)
    src, dst = np.zeros(rule.src.nbytes(100), np.uint8), np.zeros(rule.dst.nbytes(100) - 1, np.uint8)
    kernels.run(rule, host_build.Arguments(src.ctypes.data, dst.ctypes.data, 100))


if __name__ == "__main__":
    overrun() if sys.argv[1:] == ["overrun"] else main()
