# SPDX-License-Identifier: Apache-2.0
"""bench/host/training.py: the sides of a group do the same work."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from bench.host import training  # noqa: E402


def test_sides_of_a_group_have_the_same_losses_and_gradients() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
    x = torch.randn(16, 32)
    found: dict[str, list[torch.Tensor]] = {}
    losses: dict[str, list[torch.Tensor]] = {}
    for kind, _, module in training._modules(linear):
        loss = module(x).square().mean()
        loss.backward()
        found.setdefault(kind, []).append(module[0].weight.grad)
        losses.setdefault(kind, []).append(loss.detach())
    assert {kind: len(sides) >= 2 for kind, sides in found.items()} == dict.fromkeys(found, True)
    for kind, (first, *others) in found.items():
        for other in others:
            if kind == "float8 products":  # Their scales are of different rules.
                assert torch.nn.functional.cosine_similarity(first.flatten(), other.flatten(), dim=0) > 0.99
            else:
                assert torch.equal(first, other)
        for loss in losses[kind]:
            torch.testing.assert_close(loss, losses[kind][0], rtol=0.1 if kind == "float8 products" else 0, atol=0)
    assert not torch.equal(found["there and back"][0], found["float8 products"][0])


def test_a_row_for_each_side() -> None:
    rows = list(training.measured((4, 16, 16), 0))
    assert {row.kind for row in rows} == {"BFLOAT16 products", "there and back", "float8 products"}
    assert all(row.ratio > 0 for row in rows)
