# SPDX-License-Identifier: Apache-2.0
"""gpucast beside PyTorch, ml_dtypes and torchao on the CPU, for the README's picture: ``python -m bench.peers.beside``.

Times are ratios of the processor's time, with one thread for every side: in each round every side runs once, and the
quickest round counts, so that neighbours on the machine disturb all sides alike and little. Rounding: the codes of
normal BFLOAT16 matrices, by torchao and by gpucast, each beside the code that is nearest by its own scale. The figures
are written to bench/results/beside-cpu.json, which docs/beside.py draws.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

if __name__ == "__main__":
    # Read by PyTorch and by gpucast when they are imported.
    os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

import gpucast
from bench.host.casts import tensor
from bench.revision import FOLDER, ROOT, machine
from bench.timing.times import quickest

RESULT = FOLDER / "beside-cpu.json"
ELEMENTS = 1 << 22
#: Casts that people make most, and those in which PyTorch is the quicker one.
CASTS = (
    ("FLOAT", "FLOAT8E4M3FN"), ("FLOAT8E4M3FN", "FLOAT"), ("BFLOAT16", "FLOAT8E5M2"), ("FLOAT", "BFLOAT16"),
    ("FLOAT", "FLOAT16"), ("FLOAT", "INT8"), ("DOUBLE", "BFLOAT16"), ("FLOAT", "INT32"),
)  # fmt: skip
#: torchao's quantizers of its release 0.18, by recipes with their bits, and the formats that round to nearest.
QUANTIZERS = {
    "torchao-nvfp4": "nvfp4",
    "torchao-float8-row": "float8e4m3fn_axis",
    "torchao-0.18-mxfp8-floor": "mxfp8e4m3",
}
SHAPE, MATRICES = (512, 2048), 16
_ROUNDS, _LEAST = 15, 2.0

Sides = dict[str, Callable[[], object]]


def timed(sides: Sides) -> float:
    """The time of the second side over that of the first."""
    best = list(quickest(sides, _ROUNDS, least=_LEAST, clock=time.process_time).values())
    return round(best[1] / best[0], 3)


def casts() -> Iterator[dict[str, Any]]:
    """A row for each cast and library."""
    rng = np.random.default_rng(0)
    for src, dst in CASTS:
        kind = gpucast.dtype(dst).numpy
        x = gpucast.cast((rng.standard_normal(ELEMENTS) * 50).astype(np.float32), src)
        given, to = tensor(x), getattr(torch, gpucast.dtype(dst).numpy_name)
        sides: dict[str, Sides] = {
            "torch": {
                "ours": partial(gpucast.cast, given, to),
                "theirs": partial(given.to, to),
            },
            "ml_dtypes": {
                "ours": partial(gpucast.cast, x, dst),
                "theirs": partial(x.astype, kind),
            },
        }
        for library, pair in sides.items():
            yield {"from": src, "to": dst, "library": library, "ratio": timed(pair)}


def quantizers() -> Iterator[dict[str, Any]]:
    """A row for each quantizer of torchao: its time, and its codes that are not the nearest."""
    adapter = _adapter()
    for recipe, format in QUANTIZERS.items():
        run, given = _quantizer(adapter, recipe), tensor(matrix(0))
        ratio = timed({
            "ours": partial(gpucast.quantize, given, recipe),
            "theirs": partial(run, given),
        })  # fmt: skip
        wrong = ours = 0
        for seed in range(MATRICES):
            x = matrix(seed)
            wrong += not_nearest(x, format, *adapter.quantize_tensor(tensor(x), recipe))
            ours += not_nearest(x, format, *_parts(gpucast.quantize(x, format, axis=0 if "axis" in format else -1)))
        counts = {"codes": MATRICES * SHAPE[0] * SHAPE[1], "wrong": wrong, "ours": ours}
        yield {"recipe": recipe, "format": format, "library": "torchao", "ratio": ratio} | counts


def matrix(seed: int) -> Any:
    return gpucast.cast(np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32), "BFLOAT16")


def not_nearest(x: Any, format: str, data: Any, scales: Any, one: float) -> int:
    """How many codes are not the nearest to the exact quotient by their own scales."""
    spread = np.repeat(scales.astype(np.float64).reshape(SHAPE[0], -1) * one, x.size // scales.size, axis=1)
    nearest = gpucast.cast(x.astype(np.float64) / spread, gpucast.quantization.FORMATS[format].element)
    return int(np.count_nonzero(nearest.astype(np.float32) != data))


def _parts(q: gpucast.Quantized) -> tuple[Any, Any, float]:
    one = 1.0 if q.global_scale is None else float(q.global_scale)
    return q.codes.astype(np.float32), q.scales, one


def _quantizer(adapter: Any, recipe: str) -> Callable[[Any], Any]:
    """What a user of torchao calls."""
    mx, nv, primitives = adapter.mx_tensor, adapter.nvfp4_tensor, adapter.primitives
    if "nvfp4" in recipe:
        return lambda t: nv.nvfp4_quantize(t, per_tensor_scale=nv.per_tensor_amax_to_scale(t.abs().max()))
    if "mxfp8" in recipe:
        return lambda t: mx.to_mx(t, torch.float8_e4m3fn, 32, mx.ScaleCalculationMode.FLOOR)
    return lambda t: primitives._quantize_affine_float8(t, primitives._choose_scale_float8(t, [1, t.shape[1]]))


def _adapter() -> Any:
    """The module with which the conformance suite runs torchao."""
    from bench.peers.recipe_packages import _module

    return _module(ROOT / "tests/conformance/cast_conformance/adapters/torchao.py", "adapter_torchao")


def measured() -> dict[str, Any]:
    import torchao

    versions = {"torch": torch.__version__, "torchao": torchao.__version__, "gpucast": gpucast.__version__}
    kept = {
        "machine": machine() | versions,
        "elements": ELEMENTS,
        "casts": list(casts()),
        "shape": SHAPE,
        "matrices": MATRICES,
    }
    return kept | {"quantizers": list(quantizers())}


if __name__ == "__main__":
    figures = measured()
    RESULT.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for row in (*figures["casts"], *figures["quantizers"]):
        print(row)
