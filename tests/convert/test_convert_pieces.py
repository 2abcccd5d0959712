# SPDX-License-Identifier: Apache-2.0
"""The pieces of tensors with scales: small even for long rows, and the result does not depend on their size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conversions import convert, numbers
from gpucast import files
from gpucast.convert.scales import scaling, stored
from gpucast.convert.streaming import pieces
from gpucast.convert.streaming.pieces import Cut
from gpucast.core.dtypes import dtype

TYPES = ("FLOAT8E4M3FN", "FLOAT6E2M3", "FLOAT4E2M1", "INT8", "UINT4", "INT2")
PAIRS = [(to, scale) for to in TYPES for scale in scaling.formats(dtype(to))]


@pytest.mark.parametrize("shape", [(4, 8388609), (8, 2097152), (3, 5, 1000003), (70000, 33), (2, 0), (0, 7)])
@pytest.mark.parametrize(("to", "scale"), PAIRS)
def test_a_piece_is_no_larger_than_it_must_be(to: str, scale: str, shape: tuple[int, ...]) -> None:
    format = scaling.formats(dtype(to))[scale]
    cut = Cut.make(format, shape)
    sizes = [rows * columns for rows, columns in cut.shapes()]
    assert sum(sizes) == np.prod(shape)
    whole = np.prod(shape[1:]) if format.block == "axis" else 128 * shape[-1] if format.min_ndim == 2 else 0
    assert max(sizes, default=0) <= max(pieces._PIECE, whole)
    scales = sum(np.prod(format.scales_shape(piece, 1)) for piece in cut.shapes())
    if format.block not in ("tensor", "axis"):
        assert scales == np.prod(format.scales_shape(shape, len(shape) - 1))


ALONG_ROWS = [(to, scale, "gpucast") for to, scale in PAIRS if scale not in ("per-tensor", "per-channel")]
WORDS = [(to, scale, "compressed-tensors") for to in ("INT8", "UINT4") for scale in ("per-channel", "block")]


@pytest.mark.parametrize(("to", "scale", "style"), ALONG_ROWS + WORDS)
def test_small_pieces_give_the_same_bytes(
    to: str, scale: str, style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Rows with an odd number of elements, with whole groups, with whole words, and with whole blocks.
    lengths = (195, 260) if style == "gpucast" else (264, 1024) if scale == "per-channel" else (1024,)
    Path("in").mkdir()
    Path("in/config.json").write_text("{}")
    files.save("in/model.safetensors", {f"{columns}.weight": numbers(5, columns) for columns in lengths})
    options = ["--to", to, "--scale", scale, "--style", style]
    if dtype(to).family == "float":
        options += ["--rounding", "stochastic", "--seed", "5"]
    found = []
    for size, verify in ((1 << 19, []), (64, ["--verify", "all"] if scale == "mx" else ["--verify"])):
        monkeypatch.setattr(pieces, "_PIECE", size)
        monkeypatch.setattr(stored, "_STORED", size)
        assert convert("in", f"out{size}", *options, *verify) == 0
        assert convert(f"out{size}", f"back{size}", "--to", "FLOAT") == 0
        found.append([Path(f"{folder}{size}/model.safetensors").read_bytes() for folder in ("out", "back")])
    assert found[0] == found[1]
