# SPDX-License-Identifier: Apache-2.0
"""Steps of training on the CPU, with weights that are cast: ``python -m bench.host.training``.

A step is a forward pass, a loss, a backward pass, and gradients that are cleared. The model has two layers; each side
has parameters of its own, and the same numbers. Its time is a multiple of the step in FLOAT, without any cast. Sides of
a group do the same work: casts of weights and inputs by ``.to`` and by gpucast; a straight-through float8 as users of
PyTorch write it and `gpucast.mixed.fake_cast`; float8 products by torchao's ``Float8Linear``, emulated on a CPU, and by
`Linear8`. In the smallest model calls are most of the time, in the largest products are.

All settings are PyTorch's and gpucast's defaults; the quickest of interleaved rounds counts. The figures are written
with ``--out``; a table of them is part of docs/performance.md.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gpucast
from bench.revision import machine
from bench.timing.times import quickest
from gpucast.interop.torch import Linear8
from gpucast.mixed import fake_cast

#: Rows of x, its columns, and columns between the layers.
MODELS = ((16, 32, 64), (64, 256, 1024), (256, 1024, 4096))
_SEED = 2026


@dataclass(frozen=True)
class Step:
    """Seconds of a step of a model, and of the same in FLOAT."""

    model: tuple[int, int, int]
    kind: str
    side: str
    seconds: float
    base: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.base


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.host.training", description=__doc__)
    parser.add_argument("--least", type=float, default=10, metavar="SECONDS", help="of a model (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there")
    asked = parser.parse_args(arguments)
    rows = []
    for model in MODELS:
        for row in measured(model, asked.least):
            print(f"{' x '.join(map(str, row.model)):20}{row.kind:18}{row.side:24}{row.ratio:6.2f}", flush=True)
            rows.append(row)
    if asked.out:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "torchao") if _has(name)}
        figures = {"machine": machine(), "versions": versions, "rows": [asdict(row) for row in rows]}
        asked.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def measured(model: tuple[int, int, int], least: float) -> Iterator[Step]:
    """A row for each side, of one interleaved run of at least so many seconds."""
    rows, columns, between = model
    generator = torch.Generator().manual_seed(_SEED)
    x, y = (torch.randn(rows, columns, generator=generator) for _ in range(2))
    torch.manual_seed(_SEED)
    linear = torch.nn.Sequential(torch.nn.Linear(columns, between), torch.nn.GELU(), torch.nn.Linear(between, columns))
    sides = {(kind, side): partial(_step, module, x, y) for kind, side, module in _modules(linear)}
    named = {f"{kind}: {side}": call for (kind, side), call in sides.items()}
    best = quickest({"FLOAT": partial(_step, linear, x, y), **named}, 5, least=least)
    for kind, side in sides:
        yield Step(model, kind, side, best[f"{kind}: {side}"], best["FLOAT"])


def _step(model: Any, x: Any, y: Any) -> None:
    loss = (model(x) - y).square().mean()
    loss.backward()
    model.zero_grad(set_to_none=True)


class _Narrow(torch.nn.Linear):  # type: ignore[misc]  # torch is not there for every type checker.
    """A linear layer whose input and weight are cast before they are multiplied."""

    def __init__(self, linear: Any, narrow: Callable[[Any], Any]) -> None:
        super().__init__(linear.in_features, linear.out_features)
        self.load_state_dict(linear.state_dict())
        self.narrow = narrow

    def forward(self, x: Any) -> Any:
        narrow = self.narrow
        return torch.nn.functional.linear(narrow(x), narrow(self.weight), narrow(self.bias)).float()


class _Straight(_Narrow):
    """The same, in FLOAT, of numbers that float8 has; the bias is not cast."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(self.narrow(x), self.narrow(self.weight), self.bias)


def _modules(linear: Any) -> Iterator[tuple[str, str, Any]]:
    kind = torch.bfloat16
    for side, to in (("torch", lambda t: t.to(kind)), ("gpucast", lambda t: gpucast.cast(t, kind))):
        yield "BFLOAT16 products", side, _replaced(linear, partial(_Narrow, narrow=to))
    for side, straight in (("torch", _straight), ("gpucast", lambda t: fake_cast(t, "FLOAT8E4M3FN"))):
        yield "there and back", side, _replaced(linear, partial(_Straight, narrow=straight))
    for scales in ("delayed", "blocks"):
        yield "float8 products", f"gpucast, {scales}", _replaced(linear, partial(Linear8.of, scales=scales))
    if _has("torchao"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig(emulate=True)
        yield "float8 products", "torchao", convert_to_float8_training(copy.deepcopy(linear), config=config)


def _straight(t: Any) -> Any:
    """Float8 as PyTorch alone gives it, with the gradient past it."""
    most = 448.0
    return t + (t.detach().clamp(-most, most).to(torch.float8_e4m3fn).float() - t.detach())


def _replaced(model: Any, layer: Callable[[Any], Any]) -> Any:
    """The model with other linear layers."""
    return torch.nn.Sequential(
        *(layer(copy.deepcopy(one)) if isinstance(one, torch.nn.Linear) else one for one in model)
    )


if __name__ == "__main__":
    raise SystemExit(main())
