# SPDX-License-Identifier: Apache-2.0
"""Feed delayed scales to PyTorch's float8 matrix product; CuPy has none.

The three products of a linear layer (forward, and the gradients of input and weights) over some steps in which the
values drift. Operands are quantized in one pass each, with the scales that the steps before have left (E4M3 forward,
E5M2 gradients), and multiplied by ``torch._scaled_mm``, which takes the inverse scales. What comes out is compared with
the float32 product of the original operands, and of the quantized ones. On a GPU from sm_89 on, else on the host, where
newer versions of PyTorch have the product too.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import gpucast
from gpucast.mixed import DelayedScaling

#: What two ways to add the same products may differ by: half a step of bfloat16, to which results are rounded.
TOLERANCE = 2.0**-8


def quantize(x: Any, scaling: DelayedScaling) -> tuple[Any, Any]:
    """A matrix in float8, and the values of its codes in float32."""
    codes = scaling.cast(x)
    return codes, gpucast.cast(codes, "FLOAT", scale=scaling.inverse)


def scaled_mm(a: Any, b: Any, inverse_a: Any, inverse_b: Any, torch: Any) -> Any:
    """``a @ b`` of float8 matrices with the inverses of their scales, in bfloat16: `a` by rows, `b` by columns."""
    scale_a, scale_b = torch.from_dlpack(inverse_a), torch.from_dlpack(inverse_b)
    a, b = a.contiguous(), b.t().contiguous().t()
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)


def operand(matrices: dict[str, Any], name: str) -> Any:
    """The matrix "x", or its transpose "x.T"."""
    return matrices[name[0]].t() if name.endswith(".T") else matrices[name]


def difference(x: Any, y: Any) -> float:
    """The norm of x - y, relative to that of y."""
    return float(((x - y) ** 2).sum() ** 0.5 / (y**2).sum() ** 0.5)


def run(steps: int, torch: Any, device: str) -> bool:
    """Print how each product of each step does; whether torch's were those of the quantized operands."""
    rng = np.random.default_rng(0)
    types = {"x": "FLOAT8E4M3FN", "w": "FLOAT8E4M3FN", "g": "FLOAT8E5M2"}
    scales = {name: DelayedScaling(to, history=4, power_of_two=True) for name, to in types.items()}
    good = True
    print(f"{'step':>4}  {'product':10}{'scales':>24}{'to float32':>14}{'to quantized':>14}")
    for step in range(steps):
        wide, codes, narrow = {}, {}, {}
        for name, shape, size in (
            ("x", (256, 512), 1.2**step),
            ("w", (512, 128), 0.05),
            ("g", (256, 128), 1e-4 * 0.8**step),
        ):
            wide[name] = torch.from_numpy((size * rng.standard_normal(shape)).astype(np.float32)).to(device)
            codes[name], narrow[name] = quantize(wide[name], scales[name])
        for product in ("x @ w", "g @ w.T", "x.T @ g"):
            one, other = product.split(" @ ")
            first, second = scales[one[0]], scales[other[0]]
            result = scaled_mm(operand(codes, one), operand(codes, other), first.inverse, second.inverse, torch).float()
            exact, quantized = (
                difference(result, operand(matrices, one) @ operand(matrices, other)) for matrices in (wide, narrow)
            )
            good &= quantized <= TOLERANCE
            used = f"{first.scale[0]:g}, {second.scale[0]:g}"
            print(f"{step:>4}  {product:10}{used:>24}{exact:>14.2%}{quantized:>14.2%}")
        for scale in scales.values():
            scale.update()
    return good


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args(argv)
    if arguments.steps < 1:
        parser.error("--steps must be 1 or more")
    try:
        import torch
    except ImportError:
        print("scaled_mm: PyTorch is not installed; run: pip install torch", file=sys.stderr)
        return 1
    usable = gpucast.device.unavailable() is None and torch.cuda.is_available()
    device = "cuda" if usable and torch.cuda.get_device_capability() >= (8, 9) else "cpu"
    print(f"torch {torch.__version__}, device {device!r}\n")
    right = run(arguments.steps, torch, device)
    print(
        "\ntorch._scaled_mm gives the products of the quantized operands." if right else "\ntorch._scaled_mm differs."
    )
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
