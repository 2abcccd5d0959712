# SPDX-License-Identifier: Apache-2.0
"""Train a two-layer transformer in PyTorch, with matrix products in float32, BFLOAT16, float8, MXFP8 and NVFP4.

It learns to continue the source text of Python's standard library, character by character. All three products of a
linear layer (forward, and the gradients of input and weights) see narrow operands. For float8 the layer is the ready
`gpucast.interop.torch.Linear8`. For MXFP8 and NVFP4 it is one of this file: `gpucast.quantize` makes the blocks of both
axes in one pass over a tensor, and gradients of NVFP4 are rounded stochastically. Where there is no product of narrow
operands it is simulated: their values are multiplied, and summed in float32. On a GPU where there is one, else on the
host.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

import gpucast
from gpucast.interop.torch import Linear8

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 64, 16
RATE = 3e-3
#: Modules whose source is read: some 400,000 characters.
MODULES = ("argparse", "decimal", "inspect", "tarfile", "typing", "_pydecimal")
#: The format of operands, None for none, "delayed" for Linear8; and whether gradients are rounded stochastically.
PRECISIONS: dict[str, tuple[str | None, bool]] = {
    "float32": (None, False),
    "bfloat16": ("BFLOAT16", False),
    "float8 (Linear8)": ("delayed", False),
    "mxfp8": ("mxfp8e4m3_up", False),
    "nvfp4, stochastic gradients": ("nvfp4", True),
}


class Operands:
    """The operands of matrix products in one precision."""

    def __init__(self, format: str | None, stochastic: bool, seed: int) -> None:
        self.format, self.stochastic, self.seed, self.offset = format, stochastic, seed, 0

    def of(self, x: Tensor, gradient: bool = False) -> tuple[Tensor, Tensor]:
        """A matrix as products see it that sum over its last axis, and over its first one: narrow values in float32."""
        if self.format is None:
            return x, x
        if self.format == "BFLOAT16":
            x = gpucast.cast(gpucast.cast(x, "BFLOAT16"), "FLOAT")
            return x, x
        random: dict[str, Any] = {}
        if gradient and self.stochastic:
            random = {"rounding": "stochastic", "seed": self.seed, "offset": self.offset}
            self.offset += 2 * x.numel()
        by_rows, by_columns = gpucast.quantize(x, self.format, transpose="both", **random)
        return gpucast.dequantize(by_rows, "FLOAT"), gpucast.dequantize(by_columns, "FLOAT").T


class Product(torch.autograd.Function):
    """``x @ weight.T`` of narrow operands, and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, operands: Operands) -> Tensor:
        x_by_rows, x_by_columns = operands.of(x)
        w_by_rows, w_by_columns = operands.of(weight)
        ctx.save_for_backward(x_by_columns, w_by_columns)
        ctx.operands = operands
        return x_by_rows @ w_by_rows.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        g_by_rows, g_by_columns = ctx.operands.of(grads[0].contiguous(), gradient=True)
        return g_by_rows @ weight, g_by_columns.T @ x, None


class Linear(nn.Linear):
    """A linear layer with narrow products; weights, bias and results are float32."""

    operands: Operands

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x.flatten(0, -2), self.weight, self.operands).unflatten(0, x.shape[:-1]) + self.bias


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = Linear(WIDTH, 3 * WIDTH), Linear(WIDTH, WIDTH)
        self.up, self.down = Linear(WIDTH, 4 * WIDTH), Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Characters to logits. As in most recipes, embedding and last layer stay float32."""

    def __init__(self, characters: int, operands: Operands) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)
        for parent in list(self.modules()):
            for name, layer in parent.named_children():
                if isinstance(layer, Linear):
                    layer.operands = operands
                    if operands.format == "delayed":
                        setattr(parent, name, Linear8.of(layer))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def text() -> Tensor:
    """The text as numbers of its characters: the usual ones, and 0 for all others."""
    source = "".join(inspect.getsource(importlib.import_module(name)) for name in MODULES)
    codes = torch.tensor([ord(character) for character in source])
    return torch.where((codes >= 32) & (codes < 127), codes - 31, 0)


def train(precision: str, seed: int, steps: int, device: str, bar: Any) -> dict[str, Any]:
    """The loss of every step, and in the end that of text which was not trained on, in nats for a character."""
    torch.manual_seed(seed)
    tokens = text().to(device)
    split = len(tokens) * 9 // 10
    model = Transformer(96, Operands(*PRECISIONS[precision], seed)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps + 1)
    generator = torch.Generator().manual_seed(seed)

    def loss_of(starts: Tensor) -> Tensor:
        piece = tokens[starts[:, None].to(device) + torch.arange(LENGTH + 1, device=device)]
        return functional.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())

    losses = []
    for _ in range(steps):
        loss = loss_of(torch.randint(split - LENGTH - 1, (BATCH,), generator=generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        bar.update()
    with torch.no_grad():
        unseen = loss_of(torch.arange(split, len(tokens) - LENGTH - 1, LENGTH)[:256])
    return {"loss": torch.stack(losses).cpu().tolist(), "unseen": unseen.item()}


def run(steps: int, seeds: int, device: str) -> dict[str, list[dict[str, Any]]]:
    """What `train` gives, for every precision and seed."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in PRECISIONS}
    with tqdm(total=len(PRECISIONS) * seeds * steps, unit="step") as bar:
        for seed in range(seeds):
            for name, runs in results.items():
                bar.set_description(f"{name}, seed {seed}")
                runs.append(train(name, seed, steps, device, bar))
    return results


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Means over the seeds: the training loss of the last 50 steps, and the loss of unseen text."""
    lines = [f"{'precision':30}{'training loss':>14}{'unseen text':>13}{'- float32':>11}"]
    means = {name: sum(one["unseen"] for one in runs) / len(runs) for name, runs in results.items()}
    for name, runs in results.items():
        trained = sum(sum(one["loss"][-50:]) / len(one["loss"][-50:]) for one in runs) / len(runs)
        lines.append(f"{name:30}{trained:>14.3f}{means[name]:>13.3f}{means[name] - means['float32']:>+11.3f}")
    return "\n".join(lines)


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """The mean loss of every 20 steps, all precisions in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, runs in results.items():
        losses = torch.tensor([one["loss"] for one in runs]).mean(0)
        smooth = losses[: len(losses) // 20 * 20].unflatten(0, (-1, 20)).mean(1)
        style: dict[str, Any] = {"color": "black", "linestyle": ":"} if name == "float32" else {}
        axes.plot(20 * torch.arange(1, len(smooth) + 1), smooth, label=name, linewidth=1.5, **style)
    axes.set(xlabel="step", ylabel="training loss (nats for a character)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=2, help="how many runs of each precision")
    parser.add_argument(
        "--plot", type=Path, default=Path("train_transformer.png"), help="where to write the loss curves"
    )
    arguments = parser.parse_args(argv)
    if arguments.steps < 1 or arguments.seeds < 1:
        parser.error("--steps and --seeds must be 1 or more")
    if not arguments.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {str(arguments.plot.parent)!r}")
    # Products as small as these take longer when cores share them.
    torch.set_num_threads(1)
    device = "cuda" if gpucast.device.unavailable() is None and torch.cuda.is_available() else "cpu"
    start = time.perf_counter()
    results = run(arguments.steps, arguments.seeds, device)
    print(f"torch {torch.__version__}, device {device!r}, {time.perf_counter() - start:.0f} s\n")
    print(table(results))
    plot(results, arguments.plot)
    print(f"\nLoss curves: {arguments.plot}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
