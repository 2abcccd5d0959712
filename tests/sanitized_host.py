# SPDX-License-Identifier: Apache-2.0
"""Run by test_host_sanitized.py in a process of its own: the extension module, built with sanitizers.

``sanitized_host.py MODULE`` casts in every form that the module has, compares with the reference, and prints "clean".
With "overrun" the destination is one byte too short. With "threads" several cast at once, long casts with helpers among
them, and with "race" two of them write one array.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np

#: What the units of `test_host_sanitized` cast.
SOURCES = ("FLOAT", "DOUBLE", "FLOAT8E4M3FN")


def casts() -> None:
    import gpucast
    from codes import codes_of
    from gpucast.core.rule import resolve
    from gpucast.parity.cases import NUMERIC
    from gpucast.reference import exact_cast
    from hard_codes import hard_codes

    rng = np.random.default_rng(30)
    for src in map(gpucast.dtype, SOURCES):
        for dst in NUMERIC:
            rule = resolve(src, dst)
            codes = hard_codes(src, dst, 3000)
            x = codes.view(src.numpy)
            wanted = codes_of(exact_cast.apply(x, rule), dst)
            for n in (1, 63, 64, 65, 1023, 1024, x.size):
                assert np.array_equal(codes_of(gpucast.cast(x[:n].copy(), dst), dst), wanted[:n]), rule
            for step in (2, -3):
                assert np.array_equal(codes_of(gpucast.cast(x[::step], dst), dst), wanted[::step]), rule
            square = x[: x.size // 50 * 50].reshape(50, -1)
            square_wanted = wanted[: square.size].reshape(square.shape)
            out = np.empty(square.T.shape, dst.numpy)
            gpucast.cast(square.T, dst, out=out)
            assert np.array_equal(codes_of(out, dst), square_wanted.T), rule
            empty = gpucast.cast(x[:0], dst)
            assert empty.shape == (0,)
            # Shapes of no lengths, of which arrays keep nothing.
            point, place = x[0].reshape(()), np.empty((), dst.numpy)
            gpucast.cast_many([point, x[:5]], dst, out=[place, np.empty(5, dst.numpy)])
            assert codes_of(place, dst) == codes_of(gpucast.cast(point, dst), dst) == wanted[0], rule
            if dst.packed:
                packed = gpucast.PackedArray.pack(gpucast.cast(x, dst))
                assert np.array_equal(codes_of(packed.get(), dst), wanted), rule
    x = rng.standard_normal((33, 257)).astype(np.float32)
    amax, finite = np.zeros((), np.float32), np.ones((), bool)
    for form in (x, x.T, x[:, ::2], np.asfortranarray(x), x.astype(">f4"), x[:0]):
        gpucast.cast(form, "FLOAT16", scale=0.3, amax=amax)
        gpucast.cast(form, "BFLOAT16", rounding="stochastic", seed=3)
        gpucast.cast_many([form, form], "INT8", scale=3.0, finite=finite)
    wide = np.array([0.0, -1.5, 1e300, -1e300, np.nan, np.inf, 2.0**63, 2.0**64, -(2.0**31) - 1])
    for dst in ("INT64", "UINT64", "INT32", "UINT8", "FLOAT"):
        for overflow in (None, "saturate"):
            gpucast.cast(wide, dst, overflow=overflow)


def overrun() -> None:
    import ctypes

    from gpucast import _host

    x, out = np.ones(4096, np.uint8), np.empty(4095, np.uint8)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)(_host.find("gpucast_copy_4"))(
        x.ctypes.data, out.ctypes.data, x.size
    )


# ---- threads ----

_THREADS, _ROUNDS = 4, 4


def _together(work: Callable[[], object]) -> None:
    """Run the same in several threads; raises what one of them raised."""
    errors: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    every = [threading.Thread(target=caught) for _ in range(_THREADS)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()
    if errors:
        raise errors[0]


def threads() -> None:
    import gpucast

    x = np.random.default_rng(1).standard_normal(1_500_003).astype(np.float32)
    wanted = {to: gpucast.cast(x, to).tobytes() for to in ("FLOAT16", "FLOAT8E4M3FN", "INT8")}

    def work() -> None:
        for _ in range(_ROUNDS):
            for to, bits in wanted.items():
                assert gpucast.cast(x, to).tobytes() == bits, to
            amax, finite = np.zeros((), np.float32), np.ones((), bool)
            gpucast.cast(x, "FLOAT16", scale=0.5, amax=amax)
            assert amax == np.abs(x).max()
            gpucast.cast_many([x[:300_000], x[:200_001]], "BFLOAT16", finite=finite)
            assert finite
            gpucast.cast(x[:100_000].reshape(100, 1000).T, "FLOAT16")
            gpucast.cast(x, "BFLOAT16", rounding="stochastic", seed=3)
            gpucast.cast(x[:70_000], "STRING")

    _together(work)


def race() -> None:
    import gpucast

    x, out = np.ones(1_000_000, np.float32), np.empty(1_000_000, np.float16)
    _together(lambda: [gpucast.cast(x, "FLOAT16", out=out) for _ in range(20)])


if __name__ == "__main__":
    import built_module

    built_module.load(sys.argv[1])
    {"casts": casts, "overrun": overrun, "threads": threads, "race": race}[(*sys.argv[2:], "casts")[0]]()
    print("clean")
