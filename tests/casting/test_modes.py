# SPDX-License-Identifier: Apache-2.0
"""The same bits whatever modes the processor has in the thread that casts, and whatever NumPy's error state is."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast import mixed
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.parity import hard_values
from gpucast.parity.cases import NUMERIC, rules
from gpucast.quantization import FORMATS
from gpucast.reference import casting as reference
from processor_modes import MODES, is_set, modes


def codes(src: DType, dst: DType) -> np.ndarray[Any, Any]:
    """Subnormal numbers, midpoints and edges among them."""
    if src.bits > 16:
        return hard_values.codes(src, dst, seed=1, share=1 / 64, random=100)
    every = np.arange(1 << max(8, src.bits)).astype(src.code_numpy)
    return every[:: max(1, every.size // 512)]


def in_a_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("src", [kind.name for kind in NUMERIC])
def test_casts(src: str, mode: tuple[bool, int]) -> None:
    kind = dtype(src)
    for dst in NUMERIC:
        x = codes(kind, dst).view(kind.numpy)
        every = rules(kind, dst, [28])
        for rule in every[:: max(1, len(every) // 2)]:
            wanted = reference.apply(x, rule).view(dst.code_numpy)
            with modes(*mode):
                assert is_set()
                found = reference.apply(x, rule)
            assert np.array_equal(found.view(dst.code_numpy), wanted), rule
        long = np.resize(x.view(kind.code_numpy), 5000).view(kind.numpy)
        right, right_long = reference.cast(x, dst), reference.cast(long, dst)
        for _ in range(2):
            with modes(*mode):
                short, other, strided = gpucast.cast(x, dst), gpucast.cast(long, dst), gpucast.cast(long[::-2], dst)
                (many,) = gpucast.cast_many([x], dst)
                assert is_set()
            assert short.tobytes() == many.tobytes() == right.tobytes(), (src, dst)
            assert other.tobytes() == right_long.tobytes() and strided.tobytes() == right_long[::-2].tobytes()


def numbers() -> np.ndarray[Any, Any]:
    """FLOATs, made without arithmetic: subnormal, near the end of the range of float8, zeros, the largest."""
    codes = np.random.default_rng(3).integers(0, 1 << 32, (4, 64), np.uint32)
    codes &= np.array([0, 0x807FFFFF, 0x3FFFFFFF, 0xC3FFFFFF], np.uint32)[:, None]
    codes[1, :3] = 1, 0x80000001, 0x7F7FFFFF
    return codes.view(np.float32)


def _results(x: np.ndarray[Any, Any]) -> list[bytes]:
    """What public calls give for numbers that foreign modes would change."""
    found = []
    for name in FORMATS:
        for given in (x, gpucast.reference.cast(x, "DOUBLE")):
            q = gpucast.quantize(given, name)
            parts = q.parts().values()
            found += [(part.data if isinstance(part, gpucast.PackedArray) else part).tobytes() for part in parts]
            found.append(gpucast.dequantize(q).tobytes())
    amax = np.zeros((), np.float32)
    for to in ("FLOAT16", "DOUBLE", "FLOAT8E4M3FN", "INT8", "FLOAT8E8M0"):
        found.append(gpucast.cast(x, to, scale=0.34375, amax=amax).tobytes() + amax.tobytes())
        found.append(repr(gpucast.cast_report(x, to)).encode())
    found.append(gpucast.cast(x, "FLOAT16", rounding="stochastic", seed=1).tobytes())
    found.append("".join(gpucast.cast(x, "STRING").reshape(-1)).encode())
    texts = np.array(["5e-324", "1e-45", "0.1", "1e400", "-2.3e-308"])
    found += [gpucast.cast(texts, to).tobytes() for to in ("FLOAT", "DOUBLE", "BFLOAT16", "FLOAT8E5M2")]
    found += [struct.pack("<d", gpucast.finfo(kind).smallest_subnormal) for kind in DTYPES if kind.is_float]
    scale = mixed.DynamicLossScale()
    grads, finite = scale.unscale([x, x[:2]])
    found += [y.tobytes() for y in grads] + [repr((bool(finite), scale.adjust(finite).state_dict())).encode()]
    return found


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_public_calls(mode: tuple[bool, int]) -> None:
    x = numbers()
    wanted = _results(x)

    def other() -> list[bytes]:
        with modes(*mode):
            return _results(x)

    assert other() == wanted == in_a_thread(other)
    assert not is_set()


@pytest.mark.parametrize("mode", [(True, 0), (False, 2)], ids=str)
def test_nothing_is_kept_that_was_computed_under_foreign_modes(mode: tuple[bool, int]) -> None:
    """In a process that sets them before it imports gpucast: afterwards all is right, too."""
    code = (
        "import hashlib, sys\nsys.path[:0] = sys.argv[1:]\nimport numpy as np\nfrom processor_modes import modes\n"
        f"with modes{mode}:\n    import test_modes as tests\n    x = tests.numbers()\n"
        "    one = tests._results(x)\nassert one == tests._results(x)\n"
        "print(hashlib.sha256(b''.join(one)).hexdigest())\n"
    )
    paths = [*sys.path, str(Path(__file__).parent)]
    found = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    x = numbers()
    assert found.stdout.strip() == hashlib.sha256(b"".join(_results(x))).hexdigest()


def test_the_error_state_of_numpy_has_no_part() -> None:
    x = numbers()
    wanted = _results(x)
    with np.errstate(all="raise"):
        assert _results(x) == wanted
        assert np.geterr()["under"] == "raise"


def test_callbacks_of_xla() -> None:
    """Its threads flush subnormals."""
    jax = pytest.importorskip("jax")
    codes = np.array([1, 0x80000100, 0, 0x00400000], np.uint32)
    exponents = np.array([0, 1, 127], np.uint8).view(dtype("FLOAT8E8M0").numpy)
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        for given in (codes.view(np.float32), exponents):
            for to in ("DOUBLE", "FLOAT", "BFLOAT16"):
                traced = jax.jit(lambda x, to=to: gpucast.cast(x, to))(given)
                assert np.asarray(traced).tobytes() == gpucast.reference.cast(given, to).tobytes(), to
    assert not np.isnan(gpucast.quantize(np.zeros((4, 64), np.float32), "mxfp8e4m3").dequantize()).any()
