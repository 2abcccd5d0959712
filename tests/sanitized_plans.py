# SPDX-License-Identifier: Apache-2.0
"""Run by test_host_sanitized.py in a process of its own, with the module built with sanitizers: plans of quantization.

``sanitized_plans.py MODULE`` repeats public calls with arrays of many kinds, gives the module's own functions junk,
counts references and memory, and prints "clean".
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sanitized_counts import counted, counts, refused

SHAPES = ((4, 64), (32, 32), (3, 96), (1, 4096), (2, 2, 64), (64, 33), (0, 32))
JUNK: tuple[Any, ...] = (
    None, True, -1, 1 << 70, -(1 << 70), 1.5, float("nan"), "text", b"", b"\0" * 7, (), (None,), [], {}, object(), int,
    np.zeros(3), np.zeros((), "U3"), np.array([None]),
)  # fmt: skip


def forms(shape: tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
    """Arrays of a shape that lie in many ways."""
    from codes import unaligned

    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape).astype(dtype)
    yield x
    yield np.asfortranarray(x)
    yield x[::-1]
    yield np.repeat(x, 2, axis=-1)[..., ::2]
    yield x.astype(x.dtype.newbyteorder(">"))
    yield unaligned(x)
    wild = x.copy()
    wild.reshape(-1)[::7] = np.inf
    wild.reshape(-1)[3::11] = np.nan
    yield wild
    still = x.copy()
    still.flags.writeable = False
    yield still


def bytes_of(q: Any) -> list[bytes]:
    results = q if isinstance(q, tuple) else (q,)
    parts = [one.parts().values() if hasattr(one, "parts") else (one,) for one in results]
    return [np.asarray(p.data if hasattr(p, "pack") else p).tobytes() for p in itertools.chain(*parts) if p is not None]


def must_raise(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        function(*arguments)
    except (TypeError, ValueError, OverflowError):
        return
    raise AssertionError((function, arguments))


def quantize() -> None:
    import gpucast
    from codes import unaligned

    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("mxfp8e4m3", {}),
        ("mxfp8e4m3", {"rounding": "stochastic", "seed": 2**64 - 1, "offset": 3}),
        ("mxfp8e4m3", {"transpose": "both"}),
        ("mxfp8e4m3", {"hadamard": 32}),
        ("mxfp8e4m3", {"scale_layout": "128x4"}),
        ("mxfp4", {}),
        ("nvfp4", {"scale": 0.25}),
        ("nvfp4", {"amax": np.float32(3).reshape(())}),
        ("nvfp4", {"amax": 0.0}),
        ("nvfp4", {"rounding": "stochastic", "seed": 1, "scale": 1e-3, "transpose": "both"}),
    )
    for (name, keywords), shape, dtype in itertools.product(
        asked, SHAPES, (np.float32, gpucast.dtype("BFLOAT16").numpy)
    ):
        for x in forms(shape, dtype):
            try:
                first = gpucast.quantize(x, name, **keywords)
            except ValueError:
                continue  # Such as a last axis that is no multiple of a Hadamard transform's length.
            again = gpucast.quantize(x, name, **keywords)
            assert bytes_of(first) == bytes_of(again), (name, keywords, shape)
            for _ in range(2):
                assert gpucast.quantize(x, name, **keywords, out=again) is again
            assert bytes_of(first) == bytes_of(again), (name, keywords, shape)
            if isinstance(first, tuple):
                continue
            given = {"hadamard": keywords["hadamard"]} if "hadamard" in keywords else {}
            for to in ("FLOAT", "FLOAT16", "BFLOAT16"):
                y = gpucast.dequantize(first, to, **given)
                for out in (y.copy(), np.asfortranarray(y), unaligned(y)):
                    for _ in range(2):
                        with contextlib.suppress(ValueError):
                            gpucast.dequantize(first, to, out=out, **given)
                            assert out.tobytes() == y.tobytes(), (name, to, shape)
                fixed = y.copy()
                fixed.flags.writeable = False
                refused(gpucast.dequantize, first, to, out=fixed)
            del first, again


def others() -> None:
    import gpucast
    from codes import unaligned
    from gpucast.mixed import fake_cast

    for shape, dtype in itertools.product(SHAPES, (np.float32, gpucast.dtype("BFLOAT16").numpy)):
        for x in forms(shape, dtype):
            for _ in range(3):
                refused(gpucast.hadamard, x, 32, seed=1)
                for keywords in ({}, {"scale": 0.5}, {"rounding": "stochastic", "seed": 1}):
                    y = fake_cast(x, "FLOAT8E4M3FN", **keywords)
                    for out in (y.copy(), unaligned(y), x if x.flags.writeable else y):
                        refused(fake_cast, x, "FLOAT8E4M3FN", **keywords, out=out)
                fake_cast(x, "mxfp8e4m3")
            if x.ndim == 2:
                for ends in ([x.shape[0]], [0, x.shape[0] // 2, x.shape[0]], [x.shape[0] + 1]):
                    for kind in (np.int32, np.int64, np.float32):
                        for _ in range(2):
                            refused(gpucast.quantize_grouped, x, kind(ends), "mxfp8e4m3")
                            scale = np.ones(len(ends), np.float32)
                            refused(gpucast.cast_grouped, x, kind(ends), "FLOAT8E4M3FN", scale=scale)
            memory = np.zeros(4 * x.size + 64, np.uint8)
            near = memory[: x.nbytes].view(x.dtype).reshape(x.shape)
            moved = memory[32 : 32 + x.nbytes].view(x.dtype).reshape(x.shape)
            floats = memory[32 : 32 + 4 * x.size].view(np.float32).reshape(x.shape)
            for _ in range(3):
                refused(gpucast.hadamard, near, 32, seed=1, out=floats)
                refused(fake_cast, near, "FLOAT8E5M2", out=moved)


def wrong_outs() -> None:
    """Results of other shapes and classes, that share memory, that cannot be written, and whose memory was replaced."""
    import gpucast

    x = np.ones((32, 64), np.float32)

    def into(name: str, parts: dict[str, Any]) -> None:
        gpucast.quantize(x, name, out=gpucast.Quantized(**parts, format=name))

    for name in ("mxfp8e4m3", "nvfp4"):
        good = gpucast.quantize(x, name)
        for part in ("data", "scales", "global_scale"):
            # References to objects, as long as the part; a whole one for what is shorter.
            as_long = np.full(max(1, getattr(getattr(good, part), "nbytes", 0) // 8), None)
            for junk in (*JUNK, as_long, x, x[0], np.zeros((32, 64), np.uint8), x.view(np.uint8)[:, :64]):
                parts = {**good.parts(), part: junk}
                for _ in range(2):
                    refused(into, name, parts)
                # Past the checks of its class.
                bad = gpucast.quantize(x, name)
                vars(bad)[part] = junk
                for _ in range(2):
                    # Such as that of its shape.
                    with contextlib.suppress(AttributeError):
                        refused(gpucast.quantize, x, name, out=bad)
                    with contextlib.suppress(AttributeError):
                        refused(gpucast.dequantize, bad)
                assert junk is not as_long or all(one is None for one in as_long)
        for junk in JUNK:
            refused(gpucast.quantize, x, name, out=junk)
            refused(gpucast.quantize, x, name, scale=junk)
            refused(gpucast.quantize, x, name, amax=junk)
            for at in ("seed", "offset"):
                given = {"rounding": "stochastic", "seed": 1, at: junk}
                refused(gpucast.quantize, x, name, **given)
        # That of a plan goes, and comes again.
        for _ in range(50):
            y = np.ones((32, 64), np.float32)
            out = gpucast.quantize(y, name)
            gpucast.quantize(y, name, out=out)
            del y
            gpucast.dequantize(out)
            del out
            gc.collect(0)


class _Result:
    """What looks like a `gpucast.Quantized`."""

    dtype = "FLOAT"


def by_entry(
    how: Any, library: Any, data: Any, scales: Any, zeros: Any, of_all: Any, y: Any, at: int = -1, junk: Any = None
) -> bool:
    """Whether a plan of the module that has this entry, with junk at a place, gave numbers."""
    from gpucast.core.extension import MODULE

    q = _Result()
    vars(q).update(data=data, scales=scales, zero_points=zeros, global_scale=of_all)
    shape = getattr(data, "shape", ())
    entry = [
        how,
        library,
        _Result,
        {},
        type(data),
        False,
        shape,
        None,
        type(y),
        getattr(y, "dtype", None),
        np.shape(y),
        None,
        None,
        None,
        None,
        None,
    ]
    if at >= 0:
        entry[at] = junk
    plan = MODULE.plan(
        "dequantized", None, None, None, None, None, {shape: [tuple(entry)]}, None, None, None, 0, 0
    )  # fmt: skip
    hit, keep = _functions[0]
    keep(q, "FLOAT", None, None, None, y, plan)
    return hit(q, "FLOAT", None, None, None, y) is not None


_functions: list[Any] = []


def raw() -> None:
    """The module's own functions with one junk argument, and with too few or too many."""
    from gpucast.core.dtypes import dtype
    from gpucast.core.extension import MODULE
    from gpucast.quantization import block_loops, hadamard_on_host, host_calls
    from gpucast.quantization.formats import find
    from gpucast.quantization.option_checks import resolve_hadamard

    x, format = np.ones((4, 64), np.float32), find("mxfp8e4m3", "quantize")
    data, scales = np.zeros((4, 64), np.uint8), np.zeros((4, 2), np.uint8)
    how = host_calls.producing(format, dtype("FLOAT"), (4, 64), 1)
    back = host_calls.restoring(format, dtype("FLOAT"), (4, 64), 1)
    turn = hadamard_on_host.transforming(resolve_hadamard(32, None, 1, "hadamard"), dtype("FLOAT"), 256)
    y, ends = np.zeros((4, 64), np.float32), np.array([1, 4], np.int32)
    row = block_loops.Quantizing.from_buffer_copy(host_calls.quantizing(format, dtype("FLOAT"), (1, 64), 1))
    groups = bytes(block_loops.Grouping(4, 64, 4, 2, 1, 4, 4, 8, 32, row, block_loops.OrderOfScales())) + 2 * bytes(
        MODULE.WORK_BYTES
    )
    _functions.append(MODULE.function("to", "FLOAT", ("hadamard", "signs", "seed", "out"), (None,) * 4, "kff."))
    launch = (print, 1, b"\0" * 16, ((0, 0, 0), (8, -1, 0)))
    program = MODULE.program(((lambda *_: None, *launch[1:]),), ((np.ndarray, (4, 64), x.dtype, 1024, 0),), 1, (0,), 0)
    calls: tuple[tuple[Any, tuple[Any, ...]], ...] = (
        (MODULE.quantize, (how, None, x, data, scales, None, None, None, None, None, 0)),
        (MODULE.quantize, (how, None, x, data, scales, None, None, 0.5, None, 1, 0)),
        (MODULE.transform, (turn, None, x, y)),
        (MODULE.group, (groups, None, x, ends, data, scales, ends.copy(), np.zeros((), np.int32), None, None, 0)),
        (MODULE.program, ((launch,), ((np.ndarray, (4, 64), x.dtype, 1024, 0),), 1, (0,), 0)),
        (MODULE.repeat, (program, [x.ctypes.data & ~63], lambda: (1, [64]), 1, 0, 1.0)),
        (MODULE.kernel, (1, 1, 1, 32, 32, 0, 8, (0,), 0, print, print)),
        (MODULE.function, ("to", ..., ("a", "b"), (None, None), "k.")),
    )
    for function, arguments in calls:
        refused(function, *arguments)
        for count in range(len(arguments)):
            refused(function, *arguments[:count])
        refused(function, *(*arguments, 1))
        for at, junk in itertools.product(range(len(arguments)), JUNK):
            refused(function, *(*arguments[:at], junk, *arguments[at + 1 :]))
    # Arrays with too little memory, of references to objects, and that cannot be written.
    doubles = host_calls.restoring(format, dtype("DOUBLE"), (4, 64), 1)
    none = np.full((4, 64), None)
    assert by_entry(back, None, data, scales, None, None, y)
    assert not by_entry(doubles, None, data, scales, None, None, none)
    assert none[3, 63] is None
    wrong = [np.zeros(2, np.uint8), np.zeros(2, np.float32), none, np.zeros((4, 128), np.uint8)[:, ::2]]
    for function, arguments in (*calls[:3], (by_entry, (back, None, data, scales, None, None, y))):
        for at in range(2, len(arguments)):
            fixed = arguments[at].copy() if isinstance(arguments[at], np.ndarray) else np.zeros(4, np.uint8)
            fixed.flags.writeable = False
            is_read = at == 2 or (function is by_entry and at == 3)
            for one in (*wrong, *(() if is_read else (fixed,))):
                if isinstance(arguments[at], np.ndarray):
                    assert function(*arguments[:at], one, *arguments[at + 1 :]) is False, (function, at)
    grouped = calls[3][1]
    assert MODULE.group(*grouped) is True
    for at, one in itertools.product(range(2, 8), (np.zeros(1, np.uint8), none)):
        assert MODULE.group(*grouped[:at], one, *grouped[at + 1 :]) is False, at
    # Libraries of tensors that are none. (An address of a function is taken as it is.)
    view = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 1)
    address = ctypes.cast(view, ctypes.c_void_p).value
    for first, junk, at in itertools.product((0, address), JUNK, range(5)):
        given = [first, 0, (), {}, None]
        given[at] = junk if not (at < 2 and isinstance(junk, int)) else None
        library = tuple(given)
        refused(MODULE.quantize, how, library, x, data, scales, None, None, None, None, None, 0)
        refused(MODULE.transform, turn, library, x, y)
        refused(by_entry, back, library, data, scales, None, None, y)
        refused(by_entry, back, library, "data", scales, None, None, y)
    for junk, at in itertools.product(JUNK, range(16)):
        refused(by_entry, back, None, data, scales, None, None, y, at, junk)
    for junk in (*JUNK, (-1,), (2,), (1 << 62, 1 << 62)):
        refused(MODULE.new_part, junk)
        for made in ((x.dtype, junk, None, None), (none.dtype, junk, None, None), (junk, (2,), None, None)):
            refused(MODULE.new_part, made)
        refused(MODULE.new_part, (x.dtype, (2,), junk, junk))
        refused(MODULE.new_part, (x.dtype, (2,), None, None, junk, junk))
        refused(MODULE.new_part, (x.dtype, (2,), None, None, _Result, junk))
    # Launches and arrays of a program, and what it is run with.
    for junk in (*JUNK, (1,) * 40):
        for at in range(4):
            one = (*launch[:at], junk, *launch[at + 1 :])
            refused(MODULE.program, (one,), (), 0, (0,), 0)
        for at in range(3):
            patch = (*(0, 0, 0)[:at], junk, *(0, 0, 0)[at + 1 :])
            refused(MODULE.program, ((*launch[:3], (patch,)),), (), 0, (0,), 0)
        for at in range(5):
            kind = (*(np.ndarray, (4,), x.dtype, 16, 0)[:at], junk, *(np.ndarray, (4,), x.dtype, 16, 0)[at + 1 :])
            refused(MODULE.program, (launch,), (kind,), 1, (), 0)
        refused(MODULE.program, (junk,), (junk,), 1, (junk,), junk)
        refused(MODULE.repeat, program, [junk], lambda: (1, [64]), 1, 0, 1.0)
        for made in (junk, (junk,), (1, junk), (1, [junk]), (1, [0, 0])):
            refused(MODULE.repeat, program, [x.ctypes.data & ~63], lambda made=made: made, 1, 0, 1.0)
        refused(MODULE.repeat, program, [0, junk], lambda: (1, [0]), 1, 0, 1.0)
    for offsets in ((8,), (1 << 60,), tuple(range(9)), (None,), (-1,)):
        must_raise(MODULE.kernel, 1, 1, 1, 32, 32, 0, 8, offsets, 0, print, print)
    for place in ((9, 0, 0), (1 << 63, 0, 0), (0, 1, 0), (0, -4, 0)):
        must_raise(MODULE.program, ((*launch[:3], (place,)),), (), 0, (0,), 0)

    class Changing:
        """Its attributes empty the list that it is in."""

        _c_contiguous = True

        def __getattribute__(self, name: str) -> Any:
            arrays.clear()
            gc.collect(0)
            raise ValueError(name)

    arrays: list[Any] = []
    one = MODULE.program((launch,), ((Changing, (4,), x.dtype, 16, 0), (np.ndarray, (4,), x.dtype, 16, 0)), 2, (), 0)
    arrays[:] = Changing(), np.zeros(4)
    assert MODULE.repeat(one, arrays, lambda: (1, []), 0, 0, 1.0) is None and not arrays


def devices() -> None:
    import gpucast
    from bench import idle_cuda
    from gpucast.mixed import fake_cast

    def array(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        return idle_cuda.array(shape, dtype)

    with idle_cuda.idle(allocate=idle_cuda.fresh):
        one = array(())
        for shape in ((128, 256), (32, 64), (128, 256), (64, 128)):
            for _ in range(3):
                x, ends = array(shape), array((2,), np.int32)
                for name, keywords in (
                    ("mxfp8e4m3", {}),
                    ("mxfp8e4m3", {"rounding": "stochastic", "seed": 2**64 - 1}),
                    ("mxfp8e4m3", {"transpose": "both"}),
                    ("mxfp8e4m3", {"hadamard": 32}),
                    ("nvfp4", {"scale": one}),
                    ("nvfp4", {"amax": one}),
                ):
                    q = gpucast.quantize(x, name, **keywords)
                    for _ in range(3):
                        gpucast.quantize(x, name, **keywords, out=q)
                        refused(gpucast.quantize, x, name, **keywords, out=x)
                    if not isinstance(q, tuple):
                        gpucast.dequantize(q)
                gpucast.hadamard(x, 32)
                gpucast.hadamard(x, 32, out=array(shape))
                refused(gpucast.hadamard, x, 32, out=x)
                gpucast.quantize_grouped(x, ends, "mxfp8e4m3")
                gpucast.cast_grouped(x, ends, "FLOAT8E4M3FN", scale=one)
                for to in ("FLOAT8E4M3FN", "mxfp8e4m3"):
                    fake_cast(x, to)
                    fake_cast(x, to, out=x)
                    fake_cast(x.T, to)
        # The same array looks otherwise.
        for _ in range(20):
            x = array((128, 256))
            gpucast.quantize(x, "mxfp8e4m3")
            x.shape = (64, 512)
            gpucast.quantize(x, "mxfp8e4m3")


def main(path: str) -> None:
    import built_module

    built_module.load(path)
    from gpucast.core.extension import MODULE

    found = counted(MODULE)
    for part in (quantize, others, wrong_outs, raw, devices, counts):
        part()
    # Without the loops of a format its calls would be those of the reference.
    assert found.pop("quantized") > 10 and min(found.values()) > 500, found
    print("clean", found)


if __name__ == "__main__":
    main(sys.argv[1])
