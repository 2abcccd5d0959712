# SPDX-License-Identifier: Apache-2.0
"""The intervals by which `--verify all` compares many elements are those of the reference, and no other code passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast
from conversions import convert, failure
from gpucast import files
from gpucast.convert.running import verify
from gpucast.convert.streaming.intervals import Intervals
from gpucast.core.dtypes import dtype
from gpucast.core.rule import Options, resolve
from gpucast.reference import exact_cast

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("FLOAT", "FLOAT8E4M3FN", {}),
    ("FLOAT", "FLOAT8E4M3FN", {"saturate": False}),
    ("FLOAT", "FLOAT8E5M2", {"saturate": False}),
    ("FLOAT", "FLOAT8E5M2", {"rounding": "toward_zero"}),
    ("FLOAT", "FLOAT8E4M3FN", {"rounding": "odd"}),
    ("FLOAT", "FLOAT4E2M1", {}),
    ("DOUBLE", "FLOAT8E4M3FN", {"rounding": "upward"}),
    ("BFLOAT16", "FLOAT8E5M2", {}),
    ("FLOAT16", "BFLOAT16", {}),
]


@pytest.mark.parametrize(("src", "dst", "options"), CASES)
def test_what_passes_is_what_the_reference_gives(src: str, dst: str, options: dict[str, Any]) -> None:
    rule = resolve(dtype(src), dtype(dst), Options(**options))
    assert Intervals.cost(rule) is not None
    found = Intervals(rule)
    bits, rng = rule.src.bits, np.random.default_rng(0)
    codes = rng.integers(0, 1 << bits, 20_000, np.uint64).astype(rule.src.code_numpy)
    # Numbers near all limits between codes.
    near = gpucast.cast(np.linspace(-500, 500, 20_000), src).view(rule.src.code_numpy)
    x = np.concatenate([codes, near]).view(rule.src.numpy)
    y = np.asarray(exact_cast.apply(x, rule))
    numbers = np.flatnonzero(~np.isnan(gpucast.cast(x, "DOUBLE")) & ~np.isnan(gpucast.cast(y, "DOUBLE")))
    assert not np.isin(numbers, found.suspects(x, y)).any()
    for other in (1, 2, 1 << rule.dst.bits - 1):
        wrong = (y.view(rule.dst.code_numpy) ^ rule.dst.code_numpy.type(other)).view(rule.dst.numpy)
        assert found.suspects(x, wrong).size == x.size


def test_rules_whose_sources_do_not_lie_side_by_side_have_none() -> None:
    for src, dst in (("FLOAT", "INT8"), ("INT32", "BFLOAT16"), ("FLOAT", "FLOAT8E4M3FNUZ"), ("DOUBLE", "FLOAT")):
        assert Intervals.cost(resolve(dtype(src), dtype(dst), Options())) is None


def test_one_wrong_element_among_many_is_found(folder: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    files.save("in.safetensors", {"w": x})
    options = ["in.safetensors", "out.safetensors", "--to", "FLOAT8E4M3FN", "--scale", "none", "--verify", "all"]
    used: list[Any] = []

    class Noted(Intervals):
        def suspects(self, x: Any, y: Any) -> Any:
            used.append(x.size)
            return super().suspects(x, y)

    monkeypatch.setattr(verify, "Intervals", Noted)
    verify._intervals.cache_clear()
    assert convert(*options) == 0 and sum(used) == x.size
    pieces = verify._pieces

    def changed(*given: Any) -> Any:
        for start, source, target in pieces(*given):
            target.view(np.uint8)[777] ^= 1
            yield start, source, target

    monkeypatch.setattr(verify, "_pieces", changed)
    verify._intervals.cache_clear()
    assert "verify: tensor 'w': element 777 is" in failure(capsys, *options)
