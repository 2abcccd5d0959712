# SPDX-License-Identifier: Apache-2.0
"""Train a small network on handwritten digits in several precisions, and compare how they learn.

float32; bfloat16 and float16 (with a dynamic loss scale) beside float32 master weights; bfloat16 weights that have no
master copy, rounded stochastically or, to see what that is good for, to nearest; float8 with delayed scaling (E4M3
forward, E5M2 gradients); MXFP8 and NVFP4, whose blocks lie along the axis that a product sums over. By CuPy where there
is a GPU, else by NumPy. Matrix products are simulated: operands are rounded to the narrow type, and their products are
summed in float32, as tensor cores do.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from tqdm import tqdm

import gpucast
from gpucast.mixed import DelayedScaling, DynamicLossScale, LossScale, NoOpLossScale, get_policy, select_tree

SIZES = (64, 128, 64, 10)
BATCH, RATE, MOMENTUM = 64, 0.05, 0.9

Params = dict[str, list[Any]]

#: A cast to it leaves what is float32 already as it is.
FLOAT32 = get_policy("float32")


class Precision:
    """Which types a network has where: a policy, and a loss scale that its gradients need."""

    def __init__(self, policy: str, loss_scale: LossScale | None = None) -> None:
        self.policy = get_policy(policy)
        self.loss_scale = loss_scale or NoOpLossScale()

    def operand(self, x: Any, name: str, gradient: bool = False) -> tuple[Any, Any]:
        """What matrix products see of `x`, in products that sum over its last axis and over its first one: float32 that
        holds values of the compute type only."""
        rounded = FLOAT32.cast_to_compute(self.policy.cast_to_compute(x))
        return rounded, rounded

    def keep(self, tree: Any) -> Any:
        """Parameters and the optimizer's state as they are stored between steps."""
        return self.policy.cast_to_param(tree)

    def end_step(self) -> None:
        """All operands of a step have been seen."""


class Stochastic(Precision):
    """No master copy: an update smaller than half a step of the narrow type is kept with the right probability."""

    def __init__(self, policy: str, seed: int) -> None:
        super().__init__(policy)
        self.seed, self.offset = seed, 0

    def keep(self, tree: Any) -> Any:
        kept = gpucast.cast_many(
            tree, self.policy.param_dtype, rounding="stochastic", seed=self.seed, offset=self.offset
        )
        self.offset += sum(leaf.size for part in kept for leaves in part.values() for leaf in leaves)
        return kept


class Float8(Precision):
    """float8 operands, each tensor with a scale of its own; all else as bfloat16 has it."""

    def __init__(self) -> None:
        super().__init__("p=f32,c=bf16,o=f32")
        self.scales: dict[str, DelayedScaling] = {}

    def operand(self, x: Any, name: str, gradient: bool = False) -> tuple[Any, Any]:
        if name not in self.scales:
            self.scales[name] = DelayedScaling("FLOAT8E5M2" if gradient else "FLOAT8E4M3FN", power_of_two=True)
        scaling = self.scales[name]
        rounded = gpucast.cast(scaling.cast(x), "FLOAT", scale=scaling.inverse)
        return rounded, rounded

    def end_step(self) -> None:
        for scaling in self.scales.values():
            scaling.update()


class Blocks(Precision):
    """Operands with a scale for each block, made along both axes in one pass; all else as bfloat16 has it."""

    def __init__(self, format: str, seed: int | None = None) -> None:
        """With a seed gradients are rounded stochastically, which types as narrow as NVFP4 need."""
        super().__init__("p=f32,c=bf16,o=f32")
        self.format, self.seed, self.offset = format, seed, 0

    def operand(self, x: Any, name: str, gradient: bool = False) -> tuple[Any, Any]:
        random: dict[str, Any] = {}
        if gradient and self.seed is not None:
            random = {"rounding": "stochastic", "seed": self.seed, "offset": self.offset}
            self.offset += 2 * x.size
        by_rows, by_columns = gpucast.quantize(x, self.format, transpose="both", **random)
        return gpucast.dequantize(by_rows, "FLOAT"), gpucast.dequantize(by_columns, "FLOAT").T


def precisions(xp: Any, seed: int) -> dict[str, Precision]:
    return {
        "float32": Precision("f32"),
        "bfloat16": Precision("p=f32,c=bf16,o=f32"),
        "float16, dynamic loss scale": Precision("p=f32,c=f16,o=f32", DynamicLossScale(period=50)),
        "bfloat16 weights, stochastic": Stochastic("p=bf16,c=bf16,o=f32", seed),
        "bfloat16 weights, nearest": Precision("p=bf16,c=bf16,o=f32"),
        "float8, delayed scaling": Float8(),
        "mxfp8": Blocks("mxfp8e4m3_up"),
        "nvfp4, stochastic gradients": Blocks("nvfp4", seed),
    }


def initial(rng: np.random.Generator, xp: Any) -> Params:
    weights = [rng.normal(0, np.sqrt(2 / n), (n, m)).astype(np.float32) for n, m in pairwise(SIZES)]
    return {"weight": [xp.asarray(w) for w in weights], "bias": [xp.zeros(m, xp.float32) for m in SIZES[1:]]}


def forward(params: Params, x: Any, precision: Precision, xp: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """The logits, and the operands of the products that the gradients of every layer are."""
    seen = []
    for i, (weight, bias) in enumerate(zip(params["weight"], params["bias"], strict=True)):
        if i:
            x = xp.maximum(x, 0)
        a, a_of_rows = precision.operand(x, f"x{i}")
        w_of_outputs, w = precision.operand(weight, f"w{i}")
        seen.append((a_of_rows, w_of_outputs))
        x = a @ w + FLOAT32.cast_to_compute(bias)
    return precision.policy.cast_to_output(x), seen


def loss_and_gradients(params: Params, x: Any, y: Any, precision: Precision, xp: Any) -> tuple[Any, Params]:
    """The mean cross-entropy, and the gradients times the loss scale, in the compute type."""
    logits, seen = forward(params, x, precision, xp)
    logits = logits - logits.max(1, keepdims=True)
    log_p = logits - xp.log(xp.exp(logits).sum(1, keepdims=True))
    rows = xp.arange(len(y))
    loss = -log_p[rows, y].mean()
    g = xp.exp(log_p)
    g[rows, y] -= 1
    g = precision.loss_scale.scale(g / len(y))
    grads: Params = {"weight": [], "bias": []}
    for i, (a, w) in reversed(list(enumerate(seen))):
        g, g_of_rows = precision.operand(g, f"g{i}", gradient=True)
        grads["weight"].insert(0, a.T @ g_of_rows)
        grads["bias"].insert(0, g.sum(0))
        # a > 0 where the ReLU let its input through (and rounding left something of it).
        g = (g @ w.T) * (a > 0)
    return loss, precision.policy.cast_to_compute(grads)


def updated(params: Params, velocity: Params, grads: Params) -> tuple[Params, Params]:
    """One step of gradient descent with momentum, in float32."""
    params, velocity = FLOAT32.cast_to_compute((params, velocity))
    new: tuple[Params, Params] = ({}, {})
    for part in params:
        new[1][part] = [MOMENTUM * v + g for v, g in zip(velocity[part], grads[part], strict=True)]
        new[0][part] = [w - RATE * v for w, v in zip(params[part], new[1][part], strict=True)]
    return new


def train(precision: Precision, data: tuple[Any, ...], seed: int, epochs: int, xp: Any, bar: Any) -> dict[str, Any]:
    """The loss of every epoch, the accuracy on the test images in the end, and the steps that overflowed."""
    train_x, test_x, train_y, test_y = data
    rng = np.random.default_rng(seed)
    params = initial(rng, xp)
    velocity = {part: [xp.zeros_like(leaf) for leaf in leaves] for part, leaves in params.items()}
    params, velocity = precision.keep((params, velocity))
    losses, skipped = [], xp.zeros((), xp.int32)
    for _ in range(epochs):
        order = xp.asarray(rng.permutation(len(train_y)))
        total = xp.zeros((), xp.float32)
        batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
        for batch in batches:
            # Overflows are meant to happen: the loss scale looks for them.
            with np.errstate(over="ignore", invalid="ignore"):
                loss, grads = loss_and_gradients(params, train_x[batch], train_y[batch], precision, xp)
                grads, finite = precision.loss_scale.unscale(grads)
                new = precision.keep(updated(params, velocity, grads))
            params, velocity = select_tree(finite, new, (params, velocity))
            precision.loss_scale.adjust(finite)
            precision.end_step()
            total += loss
            skipped += xp.logical_not(finite)
        losses.append(float(total) / len(batches))
        bar.update()
    logits, _ = forward(params, test_x, precision, xp)
    accuracy = float((logits.argmax(1) == test_y).mean())
    return {"loss": losses, "accuracy": accuracy, "skipped": int(skipped)}


def run(epochs: int, seeds: int, xp: Any) -> dict[str, list[dict[str, Any]]]:
    """What `train` gives, for every precision and seed."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    split = train_test_split(images, labels, test_size=0.3, random_state=0, stratify=labels)
    data = tuple(xp.asarray(part) for part in split)
    results: dict[str, list[dict[str, Any]]] = {}
    with tqdm(total=len(precisions(xp, 0)) * seeds * epochs, unit="epoch") as bar:
        for seed in range(seeds):
            for name, precision in precisions(xp, seed).items():
                bar.set_description(f"{name}, seed {seed}")
                results.setdefault(name, []).append(train(precision, data, seed, epochs, xp, bar))
    return results


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Accuracies in percent: mean and range over the seeds, and the difference from float32."""
    lines = [f"{'precision':30}{'accuracy':>10}{'lowest':>9}{'highest':>9}{'- float32':>11}{'loss':>9}{'skipped':>9}"]
    baseline = np.mean([one["accuracy"] for one in results["float32"]])
    for name, runs in results.items():
        accuracies = [one["accuracy"] for one in runs]
        lines.append(
            f"{name:30}{np.mean(accuracies):>10.2%}{min(accuracies):>9.2%}{max(accuracies):>9.2%}"
            f"{100 * (np.mean(accuracies) - baseline):>+8.2f} pp{np.mean([one['loss'][-1] for one in runs]):>9.4f}"
            f"{np.mean([one['skipped'] for one in runs]):>9.1f}"
        )
    return "\n".join(lines)


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Loss curves side by side: every seed, their mean, and float32's mean to compare with."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    columns = -(-len(results) // 2)
    figure, axes = pyplot.subplots(
        2, columns, figsize=(3.6 * columns, 6), sharex=True, sharey=True, layout="constrained"
    )
    baseline = np.mean([one["loss"] for one in results["float32"]], axis=0)
    epochs = np.arange(1, len(baseline) + 1)
    for panel, (name, runs) in zip(axes.flat, results.items(), strict=True):
        losses = np.array([one["loss"] for one in runs])
        panel.plot(epochs, losses.T, color="tab:blue", alpha=0.35, linewidth=0.8)
        panel.plot(epochs, losses.mean(0), color="tab:blue", linewidth=2, label=f"mean of {len(runs)} runs")
        panel.plot(epochs, baseline, color="black", linestyle=":", label="mean of float32")
        accuracies = [one["accuracy"] for one in runs]
        spread = f"{np.mean(accuracies):.1%} right ({min(accuracies):.1%} to {max(accuracies):.1%})"
        panel.set_title(f"{name}\n{spread}", fontsize=10)
        panel.set(yscale="log")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.3)
    figure.supxlabel("epoch")
    figure.supylabel("training loss")
    axes.flat[0].legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5, help="how many runs of each precision")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where to train (a GPU where there is one)")
    parser.add_argument("--plot", type=Path, default=Path("train_digits.png"), help="where to write the loss curves")
    arguments = parser.parse_args(argv)
    if arguments.epochs < 1 or arguments.seeds < 1:
        parser.error("--epochs and --seeds must be 1 or more")
    if not arguments.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {str(arguments.plot.parent)!r}")
    device = arguments.device or ("cpu" if gpucast.device.unavailable() else "cuda")
    xp: Any = np
    if device == "cuda":
        gpucast.device.require("train_digits")
        import cupy as xp
    start = time.perf_counter()
    # Products as small as these take longer when cores share them.
    with threadpool_limits(1, "blas"):
        results = run(arguments.epochs, arguments.seeds, xp)
    print(f"device {device!r}, {arguments.epochs} epochs, {time.perf_counter() - start:.0f} s\n")
    print(table(results))
    plot(results, arguments.plot)
    print(f"\nLoss curves: {arguments.plot}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
