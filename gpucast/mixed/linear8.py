# SPDX-License-Identifier: Apache-2.0
"""A linear layer of PyTorch whose three products see float8."""

from __future__ import annotations

from typing import Any, Literal

import torch

from gpucast.casting.cast import cast
from gpucast.mixed.delayed_scaling import DelayedScaling
from gpucast.quantization.quantize_array import quantize

#: Of operands of the forward pass, and of gradients.
_FORWARD, _BACKWARD = "FLOAT8E4M3FN", "FLOAT8E5M2"
#: The same with blocks of 32.
_FORWARD_BLOCKS, _BACKWARD_BLOCKS = "mxfp8e4m3", "mxfp8e5m2"
_X, _WEIGHT = range(2)


class Linear8(torch.nn.Linear):  # type: ignore[misc]  # torch is not there for every type checker.
    """``torch.nn.Linear`` with float8 products: FLOAT8E4M3FN forward, FLOAT8E5M2 for gradients of the result.

    The three products (forward, and the gradients of input and weight) see narrow operands, are summed in FLOAT, and
    the sums are rounded once to the type of the result: that of autocast where it is on, else that of x. Parameters
    keep their type, and so do gradients. Gradients are straight through: the gradient of x is the narrow gradient times
    the narrow weight, that of the weight the narrow gradient times the narrow x.

    With delayed scales the products are ``torch._scaled_mm`` on a GPU that has it (compute capability 8.9 or newer, and
    sides that are multiples of 16), else the same sums of the same numbers in another order. Blocks are multiplied in
    FLOAT everywhere.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As for ``torch.nn.Linear``.
    scales
        "delayed": one scale for each tensor, by `gpucast.mixed.DelayedScaling`. The first forward and the first
        backward pass measure their tensors before they cast them. Later ones take scales that the magnitudes of earlier
        steps give, and a backward pass ends a step. "blocks": a power of two for each 32 numbers of the axis over which
        a product sums ("mxfp8e4m3" and "mxfp8e5m2" of `gpucast.quantize`).
    history, margin
        Of delayed scales, as for `gpucast.mixed.DelayedScaling`. Their state is part of ``state_dict``.

    The layer cannot be differentiated twice, and not by ``torch.func``. `torch.compile` calls it between two graphs.
    In evaluation mode nothing is measured.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        scales: Literal["delayed", "blocks"] = "delayed",
        history: int = 16,
        margin: int = 0,
    ) -> None:
        if scales not in ("delayed", "blocks"):
            raise ValueError(f"Linear8: scales={scales!r} must be 'delayed' or 'blocks'")
        super().__init__(in_features, out_features, bias, device, dtype)
        self.scales = scales
        #: Of x and the weight, and of the gradient; None with blocks.
        self.operands = self.gradients = None
        if scales == "delayed":
            self.operands = DelayedScaling(_FORWARD, tensors=2, history=history, margin=margin)
            self.gradients = DelayedScaling(_BACKWARD, history=history, margin=margin)

    @classmethod
    def of(cls, linear: Any, **keywords: Any) -> Linear8:
        """A layer with the parameters of a ``torch.nn.Linear``, which both share; the keywords of `Linear8`."""
        if not isinstance(linear, torch.nn.Linear):
            raise TypeError(f"Linear8.of: linear is {type(linear).__name__}; expected a torch.nn.Linear")
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, "meta", **keywords)
        layer.weight, layer.bias = linear.weight, linear.bias
        layer.train(linear.training)
        return layer

    def extra_repr(self) -> str:
        delayed = f", history={self.operands.history}, margin={self.operands.margin}" if self.operands else ""
        return f"{super().extra_repr()}, scales={self.scales!r}{delayed}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x @ weight.T + bias``."""
        kind, to = x.device.type, x.dtype
        if torch.is_autocast_enabled(kind):
            to = torch.get_autocast_dtype(kind)
        y = _product(self, x.reshape(-1, x.shape[-1]), to).reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(to)

    def update(self) -> None:
        """End a step, as each backward pass does: for steps that have none, such as a calibration. In training mode,
        because nothing is measured in evaluation mode."""
        for scaling in (self.operands, self.gradients):
            if scaling is not None:
                scaling.update()

    # ---- the state of delayed scales ----

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, scaling in self._scalings():
            # As INT32, because not every reader of files has UINT32.
            destination[prefix + name] = torch.from_numpy(scaling.state_dict()["state"].view("int32"))

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, strict: Any, *others: Any) -> None:
        missing, unexpected, errors = others
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)
        for name, scaling in self._scalings():
            key = prefix + name
            if key not in state:
                missing.append(key)
                continue
            if key in unexpected:
                unexpected.remove(key)
            words = state[key].detach().cpu().contiguous().numpy().view("uint32")
            try:
                scaling.load_state_dict(scaling.state_dict() | {"state": words})
            except (TypeError, ValueError) as error:
                errors.append(f"{key}: {error}")

    def _scalings(self) -> list[tuple[str, DelayedScaling]]:
        named = (("operands", self.operands), ("gradients", self.gradients))
        return [(name, scaling) for name, scaling in named if scaling is not None]


@torch.compiler.disable  # type: ignore[untyped-decorator]  # Scales have a state, which no graph holds.
def _product(layer: Linear8, x: torch.Tensor, to: Any) -> Any:
    function = _Blocks if layer.operands is None else _Delayed
    return function.apply(x, layer.weight, layer, to)


class _Delayed(torch.autograd.Function):  # type: ignore[misc]  # As above.
    """``x @ weight.T`` with delayed scales, and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: Linear8, to: Any) -> torch.Tensor:
        scaling = layer.operands
        assert scaling is not None
        x_codes, w_codes = _codes(scaling, (x, weight), layer.training)
        x_inverse, w_inverse = (_inverse(scaling, i, x) for i in (_X, _WEIGHT))
        ctx.save_for_backward(x_codes, w_codes, x_inverse, w_inverse)
        ctx.layer, ctx.kinds = layer, (x.dtype, weight.dtype)
        return _multiply(x_codes, w_codes.t(), x_inverse, w_inverse, to)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *dy: torch.Tensor) -> tuple[Any, ...]:
        x_codes, w_codes, x_inverse, w_inverse = ctx.saved_tensors
        scaling, (x_kind, w_kind) = ctx.layer.gradients, ctx.kinds
        # In evaluation mode gradients may be asked for, too.
        (codes,) = _codes(scaling, dy, ctx.layer.training)
        inverse = _inverse(scaling, 0, codes)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = _multiply(codes, w_codes, inverse, w_inverse, x_kind)
        if ctx.needs_input_grad[1]:
            dw = _multiply(codes.t(), x_codes, inverse, x_inverse, w_kind)
        if ctx.layer.training:
            ctx.layer.update()
        return dx, dw, None, None


def _codes(scaling: DelayedScaling, tensors: tuple[torch.Tensor, ...], measure: bool) -> list[torch.Tensor]:
    """Tensors in float8, each times its scale."""
    if not scaling.begun and all(x.numel() for x in tensors):
        # Scales of 1 would lose most of a tensor of small numbers.
        for i, x in enumerate(tensors):
            scaling.cast(x, i)
        scaling.update()
    if measure:
        return [scaling.cast(x, i) for i, x in enumerate(tensors)]
    return [cast(x, scaling.to, scale=scaling.scale[i]) for i, x in enumerate(tensors)]


def _inverse(scaling: DelayedScaling, tensor: int, like: torch.Tensor) -> torch.Tensor:
    """A copy of 1 / scale, which stays as it is when a step ends, where `like` is."""
    inverse = scaling.inverse[tensor : tensor + 1]
    if like.is_cuda:
        return torch.from_dlpack(inverse).clone()  # type: ignore[no-any-return, unused-ignore]
    return torch.tensor(float(inverse[0]), dtype=torch.float32, device="cpu")


def _multiply(a: torch.Tensor, b: torch.Tensor, a_inverse: torch.Tensor, b_inverse: torch.Tensor, to: Any) -> Any:
    """``a @ b`` of float8 matrices, times both inverses."""
    if _has_product(a, b, to):
        # It takes the first matrix by rows, and the second one by columns.
        a, b = a.contiguous(), b.t().contiguous().t()
        return torch._scaled_mm(a, b, scale_a=a_inverse, scale_b=b_inverse, out_dtype=to)
    with torch.autocast(a.device.type, enabled=False):
        product = cast(a, "FLOAT") @ cast(b, "FLOAT")
        return (product * (a_inverse * b_inverse)).to(to)


def _has_product(a: torch.Tensor, b: torch.Tensor, to: Any) -> bool:
    """Whether ``torch._scaled_mm`` takes the matrices."""
    if not a.is_cuda or to not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    sides_fit = all(side and side % 16 == 0 for side in (*a.shape, b.shape[1]))
    return sides_fit and torch.cuda.get_device_capability(a.device) >= (8, 9)


class _Blocks(torch.autograd.Function):  # type: ignore[misc]  # As above.
    """``x @ weight.T`` with blocks along the axis over which each product sums, and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: Linear8, to: Any) -> Any:
        (x_rows, ctx.x), (w_rows, ctx.weight) = (quantize(t, _FORWARD_BLOCKS, transpose="both") for t in (x, weight))
        ctx.kinds = x.dtype, weight.dtype
        return _multiply_blocks(x_rows, w_rows, to)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *dy: torch.Tensor) -> tuple[Any, ...]:
        rows, columns = quantize(dy[0], _BACKWARD_BLOCKS, transpose="both")
        x_kind, w_kind = ctx.kinds
        dx = _multiply_blocks(rows, ctx.weight, x_kind) if ctx.needs_input_grad[0] else None
        dw = _multiply_blocks(columns, ctx.x, w_kind) if ctx.needs_input_grad[1] else None
        return dx, dw, None, None


def _multiply_blocks(a: Any, b: Any, to: Any) -> Any:
    """``a @ b.T`` of quantized matrices."""
    one, other = a.dequantize(), b.dequantize()
    with torch.autocast(one.device.type, enabled=False):
        return (one @ other.t()).to(to)
