# SPDX-License-Identifier: Apache-2.0
"""The Python that repeated calls enter. Time is noisy, these counts are not: they may fall, not rise unnoticed."""

from __future__ import annotations

from typing import Any

import pytest

from gpucast.core.extension import MODULE

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(MODULE is None, reason="without the extension module there are no plans"),
]
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from bench import idle_cuda  # noqa: E402
from bench.host import calls  # noqa: E402
from gpucast.kernel.nvrtc import Nvrtc  # noqa: E402

#: The most functions and files, by the end of a row's name; the first that fits counts.
MOST = {
    "JAX": (10, 3),
    "JAX, mxfp8e4m3": (34, 6),
    "JAX, mxfp8e4m3, dequantize": (34, 6),
    "JAX to FLOAT4E2M1": (9, 3),
    "JAX, mxfp8e4m3, groups": (64, 8),
    "groups": (6, 5),
    "groups of a tensor": (6, 5),
    "groups, out=": (7, 5),
    "groups of a tensor, out=": (8, 6),
    "groups cast": (7, 6),
    "groups cast of a tensor": (7, 6),
    "scale_layout=": (2, 2),
    "scale_layout= of a tensor": (2, 2),
    "CuPy, nvfp4": (7, 4),
    "CuPy, nvfp4, out=": (6, 5),
    "a number as scale=": (15, 4),
    "hadamard": (9, 5),
    "of a weight, no_grad": (12, 6),
    "there and back, gradient": (22, 9),
    "weights, gradient": (160, 9),
    "gradient": (13, 7),
    "tensors, out=": (3, 2),
    "arrays, out=": (3, 2),
    "transposed, out=": (10, 4),
    "of CuPy, out=": (8, 4),
    "dequantize": (3, 3),
    "dequantize out=": (4, 3),
}
OTHERS, QUANTIZED = (4, 3), (3, 3)


def most(row: str) -> tuple[int, int]:
    found = next((counts for end, counts in MOST.items() if row.endswith(end)), None)
    return found or (QUANTIZED if any(name in row for name in ("mxfp8e4m3", "nvfp4", "int4_128")) else OTHERS)


def check(row: str, call: calls.Call) -> None:
    for _ in range(3):
        call()
    functions, files = min(calls.entered(call) for _ in range(5))
    assert (functions, files) <= most(row) and files <= most(row)[1], (row, functions, files)


def test_calls_of_the_host() -> None:
    rows = calls.host()
    assert len(rows) > 30
    for row, (call, beside) in rows.items():
        check(row, call)
        beside()


def test_kernels_are_compiled_in_every_shape_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one that does nothing, and each as often; how long they take is for no test to say."""
    compiled = list[tuple[str, bool]]()
    compile_one = Nvrtc.compile

    def noted(self: Nvrtc, text: str, name: str, arch: str, options: Any) -> Any:
        compiled.append((name, "GPUCAST" in text and options != ()))
        return compile_one(self, text, name, arch, options)

    monkeypatch.setattr(Nvrtc, "compile", noted)
    found = calls.compilations(1)
    assert list(found)[-1] == "an empty kernel" and len(found) in (3, 4)
    *casts, empty = dict.fromkeys(compiled)
    assert empty == ("k", False) and len(casts) == len(found) - 1
    assert all(name.startswith("gpucast_") and is_ours for name, is_ours in casts)


def test_calls_on_a_device() -> None:
    rooms = [idle_cuda.array((1 << 16,), "uint8").data for _ in range(16)]
    with idle_cuda.idle(allocate=lambda nbytes: rooms.append(rooms.pop(0)) or rooms[-1]):
        for row, call in calls.device().items():
            check(row, call)
