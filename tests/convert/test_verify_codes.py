# SPDX-License-Identifier: Apache-2.0
"""`--verify all` compares codes of many blocks without quantizing each number again: what passes is what the reference
gives, and no other code or scale does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conversions import convert, failure
from gpucast import files
from gpucast.convert.scales import scaling
from gpucast.convert.streaming import pieces
from gpucast.convert.streaming.pieces import Quantizer, axis, by_reference
from gpucast.convert.streaming.same_codes import are_same
from gpucast.core.dtypes import dtype
from gpucast.files.tensor import LoadedTensor
from gpucast.quantization import RECIPES, exact_quantize
from gpucast.quantization.formats import FORMATS

ALL = {**FORMATS, **{name: recipe.format for name, recipe in RECIPES.items()}}
#: Tensors have no global scale in blocks of two lengths.
KNOWN = [
    name
    for name, format in ALL.items()
    if format.rule != "4over6" and not (format.global_scale and format.min_ndim == 2)
]


def tensor(x: Any) -> LoadedTensor:
    return LoadedTensor("x", dtype(x.dtype), x.shape, "", x.nbytes, x)


def hard(format: Any, source: Any) -> Any:
    """Blocks, ragged at the ends, of numbers, of products of scales and of the halves between codes, and of the next
    numbers to these."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((40, 200)) * np.exp2(rng.integers(-9, 9, (40, 1)))).astype(np.float32)
    x[3], x[:, 150:160], x[5, ::2] = 0, -0.0, np.float32(1e-40)
    parts = exact_quantize.quantize(x, format, axis=axis(format))
    unit = np.abs(exact_quantize.dequantize(parts, format, "FLOAT", axis=axis(format)))
    ties = (unit * rng.choice([0.5, 1.25, 1.5, 0.75, 1.0625], x.shape)).astype(np.float32)
    near = np.nextafter(ties, rng.choice([-np.inf, np.inf], x.shape).astype(np.float32))
    place = rng.integers(0, 4, x.shape)
    x = np.where(place == 0, x, np.where(place == 1, ties, np.where(place == 2, near, -ties)))
    return np.nan_to_num(x, posinf=0, neginf=0).astype(source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (name, source)
        for name in KNOWN
        for source in (np.float32, np.float16)
        if name not in RECIPES or dtype(source).name in RECIPES[name].sources
    ],
)
def test_what_passes_is_what_the_reference_gives(name: str, source: Any) -> None:
    format = ALL[name]
    x = hard(format, source)
    quantizer = Quantizer(tensor(x), format, by_reference)
    parts = quantizer(x, 0)
    # What rounds twice, and divides zeros by zero, is left to the reference.
    is_left = format.steps is not None and format.steps.rounds_codes and source is np.float16
    zeros = not parts.scales.astype(np.float32).all()
    is_left |= zeros and format.steps is not None and not format.steps.multiplies and "pick" not in format.steps.code
    assert are_same(quantizer, x, parts.data, parts) is not is_left
    if is_left:
        return
    rng = np.random.default_rng(1)
    raw = parts.data.view(np.uint8)
    for place in rng.choice(raw.size, 20, replace=False):
        # One code more or less, as codes go, and the other zero.
        for other in (1, 0x80 >> (8 - format.element.bits), 3):
            wrong = parts.data.copy()
            wrong.view(np.uint8).reshape(-1)[place] ^= other
            assert not are_same(quantizer, x, wrong, parts), (int(place), other)
    for part in ("scales", "zero_points"):
        array = getattr(parts, part)
        if array is not None:
            wrong = np.ascontiguousarray(array).reshape(-1).copy()
            flat = wrong.reshape(-1).view(np.uint8)
            flat[flat.size // 2] ^= 1
            assert not are_same(quantizer, x, parts.data, exact_quantize.replace(parts, **{part: wrong}))


@pytest.mark.parametrize("scale", ["block", "per-tensor", "per-channel", "mx", "nvfp4"])
def test_the_whole_is_verified_so(scale: str, folder: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    files.save("in.safetensors", {"w": x})
    to = "INT8" if scale in ("block", "per-tensor", "per-channel") else "FLOAT4E2M1"
    passed = []

    def noted(*given: Any) -> bool:
        passed.append(are_same(*given))
        return passed[-1]

    monkeypatch.setattr(scaling, "are_same", noted)
    command = ["in.safetensors", "out.safetensors", "--to", to, "--scale", scale, "--verify", "all"]
    assert convert(*command) == 0
    assert passed and all(passed)
    # A wrong engine is found, and the error is the reference's.
    good = pieces.quantize_on_host.quantize

    def wrong(*given: Any, **options: Any) -> Any:
        parts = good(*given, **options)
        parts.data.view(np.uint8).reshape(-1)[0] ^= 1
        return parts

    monkeypatch.setattr(pieces.quantize_on_host, "quantize", wrong)
    assert "tensor 'w' differs from the reference" in failure(capsys, *command)
    assert not passed[-1]
