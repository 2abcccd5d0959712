# SPDX-License-Identifier: Apache-2.0
"""PyTorch: `gpucast.cast` of tensors, as the custom op ``torch.ops.gpucast.cast``.

`gpucast.cast` and `cast_like` take tensors in host memory and on CUDA devices and give tensors, on torch's current
stream and in torch's memory, with no copy beside the cast itself. Types of one byte or more have torch's own dtype.
FLOAT4E2M1 is ``torch.float4_e2m1fn_x2``: pairs along the last axis, whose length must be even. The other types below
one byte are a `PackedArray` over a tensor's memory (torch has no packed integers, cannot even print its ``int4``, and
has no float6); `PackedArray.to_torch` gives the tensor of bytes. As input ``torch.int4``, ``uint4``, ``int2`` and
``uint2`` have one element per byte. STRING is a NumPy array of str.

Gradients: for ``y = cast(x, to, ...)`` between floating types the gradient is ``cast(dy, x.dtype)``, with the defaults
of `gpucast.cast`: rounding and clamping count as the identity. torch hands over dy in the type of y. To and from
integers, BOOL and types below one byte nothing is differentiable. The transforms of ``torch.func``, but for forward
mode, take casts to types of one byte or more; in a ``vmap`` each part of the batch takes the same random bits, as if it
were cast alone.
With a `scale` the gradient is ``cast(dy, x.dtype, scale=scale)``: cast back, times the number. None goes to `scale`
itself, nor by way of `amax`; both may be tensors on x's device.

``torch.compile`` keeps a cast as one node of the graph (not where the result is a `PackedArray`: call
``torch.ops.gpucast.cast``, which gives its bytes as a flat uint8 tensor). With `amax` the node gives a new one, which
is copied into it. Inductor fuses nothing into that node. Within a chain of element-wise operations
``x.to(torch.bfloat16)`` is the better choice: inductor fuses it with its neighbours, and saves whole passes over
memory. Use gpucast where its rules matter (float8 with ONNX's saturation, FLOAT8E8M0, float4, integers, one rounding
from float64) or where the cast stands alone.
"""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError(f"gpucast.interop.torch needs PyTorch ({error}): pip install torch") from error

if not hasattr(torch.library, "register_vmap"):
    raise ImportError(f"gpucast.interop.torch needs PyTorch 2.5 or newer; this is {torch.__version__}")

from gpucast.arrays import adapters as intake
from gpucast.arrays.packed import PackedArray, home
from gpucast.casting import cast as casting
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.options import Call
from gpucast.core.random import resolve_random
from gpucast.core.rule import CAST_VERSIONS, DEFAULT_OPSET, resolve
from gpucast.gpu import devices

if TYPE_CHECKING:
    from gpucast.casting import batch_plans as many_plans

__all__ = ["attach", "cast", "check_into", "check_scale", "from_packed", "reader", "room", "stream", "take"]

#: torch's dtype of every type that it has whole elements of: for types below one byte, one element per byte.
TORCH_DTYPES: dict[DType, Any] = {
    row: getattr(torch, row.numpy_name) for row in DTYPES if hasattr(torch, row.numpy_name)
}
#: torch's dtype of the codes of each of them, and the way back from a dtype.
_CODES: dict[DType, Any] = {row: getattr(torch, row.code_numpy.name) for row in TORCH_DTYPES}
_ROWS: dict[Any, DType] = {kind: row for row, kind in TORCH_DTYPES.items()}
#: Two elements of FLOAT4E2M1 per byte, the first in the low bits; None for a torch that is older than that.
PAIRS: Any = getattr(torch, "float4_e2m1fn_x2", None)
_PAIRED = dtype("FLOAT4E2M1")
DEFAULTS = {"saturate": True, "round_mode": "up", "opset": DEFAULT_OPSET, "rounding": None, "overflow": None}


def take(x: torch.Tensor, who: str, writing: bool = False) -> Any:
    """An array over a tensor's memory: NumPy, CuPy or, for float4 pairs, a PackedArray."""
    row, device = row_of(x, who), _device(x, who)
    if writing:
        check_writable(x, who)
        written(x)
    elif x.requires_grad:
        x = x.detach()
    if x.is_neg():
        x = x.resolve_neg()
    if x.dtype is not PAIRS:
        return _view(x, row, device, who)
    codes = _view(x.view(torch.uint8).reshape(-1), dtype("UINT8"), device, who)
    return PackedArray(codes, row, tuple(shape_of(x)))


def written(x: torch.Tensor) -> None:
    """Tell autograd that what it has saved of a tensor is no longer what it was."""
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)


def check_writable(out: torch.Tensor, who: str) -> None:
    if out.requires_grad:
        raise ValueError(f"{who}: out requires grad; expected a tensor that does not, such as out.detach()")
    # torch.compile cannot ask for the bit.
    negated = not torch.compiler.is_compiling() and out.is_neg()
    if negated or (out.dtype is PAIRS and not out.is_contiguous()):
        raise ValueError(f"{who}: out is a negated view, or pairs that are not contiguous; expected plain memory")


def _view(x: torch.Tensor, row: DType, device: int | None, who: str) -> Any:
    try:
        if device is None:
            return x.view(_CODES[row]).numpy().view(row.numpy)
        address = _address(x)
    except RuntimeError as error:
        raise TypeError(
            f"{who}: x is a {type(x).__name__} without memory of its own, as within a transform of torch.func or while "
            "torch traces a graph; expected one with elements to read: call it outside"
        ) from error
    strides = tuple(stride * x.element_size() for stride in x.stride())
    return intake.view_at(address, tuple(x.shape), strides, row, device, x)


def _address(x: torch.Tensor) -> int:
    """Where the elements of a tensor on a device begin; RuntimeError for a subclass that keeps them elsewhere."""
    # That of a fake tensor cannot be asked for without a warning.
    fake = type(x) is not torch.Tensor and x.untyped_storage().device.type == "meta"
    address = 0 if fake else x.data_ptr()
    if address == 0 and x.numel():
        raise RuntimeError("its address is 0")
    return address


def row_of(x: torch.Tensor, who: str) -> DType:
    """The row of a tensor's dtype. TypeError for tensors that are no plain memory full of numbers."""
    if x.is_nested or x.layout is not torch.strided:
        layout = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise TypeError(f"{who}: x has the layout {layout}; expected a strided tensor: cast x.values() or x.to_dense()")
    if x.is_quantized:
        raise TypeError(f"{who}: x is quantized; cast x.int_repr() or x.dequantize()")
    return _ROWS.get(x.dtype) or dtype(x.dtype, who=f"{who}: x.dtype=")


def _device(x: torch.Tensor, who: str) -> int | None:
    """The index of the CUDA device that holds a tensor; None for the host."""
    if x.is_cpu:
        return None
    if x.is_cuda:
        return int(x.device.index)
    where = "is a meta tensor, which has no elements" if x.is_meta else f"is on {x.device}"
    raise TypeError(f"{who}: x {where}; expected a tensor on 'cpu' or 'cuda'")


def stream(device: int) -> int:
    """torch's current stream of a CUDA device."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def on_stream_of(x: torch.Tensor, who: str) -> contextlib.AbstractContextManager[None]:
    """Make torch's current stream CuPy's, where a tensor is on a device."""
    device = _device(x, who)
    if device is None:
        return contextlib.nullcontext()
    from gpucast.gpu import driver as launch

    devices.require(who)
    return launch.driver().using(stream(device), device)


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is at work, or forward mode: they differentiate no custom ops, and the
    latter does not even say so. Not where graphs are made."""
    if torch.compiler.is_compiling():
        return False
    active = getattr(torch._C, "_are_functorch_transforms_active", bool)
    return bool(active()) or getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0


def cast(inner: intake.Inner, x: torch.Tensor, to: Any, call: Call) -> Any:
    """See `gpucast.arrays.adapters.Door`."""
    attributes: tuple[Any, ...] = call[: len(DEFAULTS)]
    device, out, copy, who = call.device, call.out, call.copy, call.who
    dst = intake.destination(to, who)
    src = row_of(x, who)
    if dst.family == "string":
        with on_stream_of(x, who):
            return inner(take(x, who), dst, call)
    if not isinstance(copy, (bool, np.bool_)):
        raise TypeError(f"{who}: copy={copy!r} must be True or False")
    if call.versions is CAST_VERSIONS and all(map(operator.is_, attributes, DEFAULTS.values())):
        attributes = ()
    else:
        _check(src, dst, attributes, call.versions, who)
        saturate, round_mode, opset, rounding, overflow = attributes
        # An op takes Python's own types only.
        attributes = bool(saturate), round_mode, int(opset), rounding, overflow
    place = x.device if device is None else _place(x, device, who)
    random = resolve_random(call.rounding, call.seed, call.offset, who)
    if random is not None or call.scale is not None or call.amax is not None or transformed():
        from gpucast.interop import torch_fused

        return torch_fused.cast(x, dst, attributes, random, call, place)
    if out is not None:
        return _into(x if place == x.device else x.to(place), dst, attributes, out, who)
    shape = shape_of(x)
    check_pairs(shape, dst, who)
    if place != x.device and not 0 < dst.bits < src.bits:
        x = x.to(place)
    if not copy and src is dst and place == x.device and not (src.packed or src.family == "bool"):
        return x
    y = _op(x, dst.name, *attributes)
    if place != x.device:
        y = y.to(place)
    return given(y, shape, dst, who) if dst.packed else y


def room(x: torch.Tensor, dst: DType, who: str) -> tuple[Any, Any]:
    """See `gpucast.arrays.item.Library`, as for what follows."""
    shape = shape_of(x)
    check_pairs(shape, dst, who)
    y = new(x, dst.name)
    array = take(y, who, writing=True)
    return (given(y, shape, dst, who), PackedArray(array, dst, tuple(shape))) if dst.packed else (y, array)


def check_pairs(shape: Any, dst: DType, who: str) -> None:
    if dst is _PAIRED and PAIRS is not None and (not shape or shape[-1] % 2):
        raise ValueError(
            f"{who}: x has shape {tuple(shape)}; torch has FLOAT4E2M1 in pairs along the last axis, whose length must "
            "be even: pad it, or cast an array of NumPy or CuPy"
        )


def given(y: torch.Tensor, shape: Any, dst: DType, who: str) -> Any:
    """The packed bytes of a result as the caller gets them."""
    if dst is _PAIRED and PAIRS is not None:
        return y.view(PAIRS).reshape(*shape[:-1], shape[-1] // 2)
    return PackedArray(take(y, who), dst, tuple(shape))


def _check(src: DType, dst: DType, attributes: tuple[Any, ...], versions: tuple[int, ...], who: str) -> None:
    resolve(src, dst, **named(attributes), versions=versions, who=who)


def named(attributes: tuple[Any, ...]) -> dict[str, Any]:
    """The keywords of a cast. torch leaves out the last arguments of an op where they have their default."""
    return dict(zip(DEFAULTS, attributes, strict=False))


def _place(x: torch.Tensor, device: Any, who: str) -> torch.device:
    """Where the result belongs."""
    place = devices.parse(device, who)
    if place is None:
        return x.device
    return torch.device("cpu") if place == "cpu" else torch.device("cuda", devices.index(place, who))


def check_scale(scale: torch.Tensor, who: str) -> None:
    """ValueError for a scale that is to be differentiable."""
    if scale.requires_grad:
        raise ValueError(f"{who}: scale requires grad, and is not differentiable; pass scale.detach()")


def check_into(x: torch.Tensor, who: str) -> None:
    """ValueError for a tensor whose cast is to be differentiable, where it is to be written to an `out`."""
    if torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(f"{who}: x requires grad, and out= is not differentiable; pass x.detach(), or no out")


def _into(x: torch.Tensor, dst: DType, attributes: tuple[Any, ...], out: Any, who: str) -> Any:
    check_out(x, dst, out, who)
    if isinstance(out, PackedArray):
        with on_stream_of(x, who):
            write(take(x, who), dst, named(attributes), out, who)
    else:
        _op_out(x, out, dst.name, *attributes)
    return out


def check_out(x: torch.Tensor, dst: DType, out: Any, who: str) -> None:
    check_into(x, who)
    if isinstance(out, PackedArray):
        return
    if not isinstance(out, torch.Tensor):
        wanted = "a PackedArray" if dst.packed and dst is not _PAIRED else "a tensor"
        shape = tuple(shape_of(x))
        raise TypeError(f"{who}: out is {type(out).__name__}; expected {wanted} of {dst.name} and shape {shape}")
    check_writable(out, who)
    if out.device != x.device:
        raise ValueError(f"{who}: out is on {out.device}; the result belongs on {x.device}")


def from_packed(x: PackedArray) -> torch.Tensor:
    """See `PackedArray.to_torch`."""
    row = x.dtype
    if not x.shape or x.shape[-1] * row.bits % 8:
        raise ValueError(
            f"PackedArray: a tensor of bytes needs a last axis of whole bytes; {row.name} of shape {x.shape} has not"
        )
    if isinstance(x.data, np.ndarray):
        # torch has no tensors that are read-only.
        y = torch.from_numpy(x.data if x.data.flags.writeable else x.data.copy())
    else:
        y = torch.utils.dlpack.from_dlpack(x.data)
    y = y.reshape(*x.shape[:-1], x.shape[-1] * row.bits // 8)
    return y.view(PAIRS) if row is _PAIRED and PAIRS is not None else y


# ---- the op ----

_SCHEMA = (
    f"str to, bool saturate=True, str round_mode='up', int opset={DEFAULT_OPSET}, str? rounding=None, "
    "str? overflow=None"
)


def shape_of(x: torch.Tensor) -> Any:
    """The shape of the elements."""
    if x.dtype is not PAIRS:
        return x.shape
    return (*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else (2,)


def new(x: torch.Tensor, to: str, *attributes: Any) -> torch.Tensor:
    """Room for a result: order "K" for whole bytes, and the flat bytes of a packed type."""
    src, dst = row_of(x, "cast"), dtype(to, who="cast: to=")
    if attributes:
        _check(src, dst, attributes, CAST_VERSIONS, "cast")
    if dst.family == "string":
        raise TypeError("cast: torch has no STRING; gpucast.cast gives a NumPy array")
    if dst.packed:
        return x.new_empty(dst.nbytes(x.numel() * (2 if x.dtype is PAIRS else 1)), dtype=torch.uint8)
    if dst not in TORCH_DTYPES:
        raise TypeError(f"cast: this torch ({torch.__version__}) has no {dst.numpy_name}")
    if x.dtype is PAIRS:
        return x.new_empty(shape_of(x), dtype=TORCH_DTYPES[dst])
    return torch.empty_like(x, dtype=TORCH_DTYPES[dst])


def fill(x: torch.Tensor, y: torch.Tensor, dst: DType, keywords: dict[str, Any], bytes_only: bool) -> None:
    """Cast a tensor into another; `bytes_only` where that is the flat bytes of a packed type."""
    array, out = take(x, "cast"), take(y, "cast", writing=True)
    with on_stream_of(x, "cast"):
        write(array, dst, keywords, PackedArray(out, dst, array.shape) if bytes_only else out, "cast")


def write(array: Any, dst: DType, keywords: dict[str, Any], out: Any, who: str) -> None:
    """Cast an array into `out`, which is packed for types below one byte, on the host as on a device."""
    if not (isinstance(array, np.ndarray) and isinstance(out, PackedArray)):
        casting.cast(array, dst, **keywords, out=out)
        return
    if out.dtype is not dst:
        raise TypeError(f"{who}: out has dtype {out.dtype}; expected {dst}")
    if out.shape != array.shape:
        raise ValueError(f"{who}: out has shape {out.shape}; expected {array.shape}")
    if home(out) is not None:
        raise ValueError(f"{who}: out is on cuda:{home(out)}; the result belongs on the host")
    # An array with an element per byte gives such an array on the host.
    out.data[...] = PackedArray.pack(casting.cast(array, dst, **keywords)).data


def _cast(x: torch.Tensor, to: str, *attributes: Any) -> torch.Tensor:
    y = new(x, to, *attributes)
    dst = dtype(to)
    fill(x, y, dst, named(attributes), dst.packed)
    return y


def _cast_out(x: torch.Tensor, out: torch.Tensor, to: str, *attributes: Any) -> None:
    fill(x, out, dtype(to, who="cast: to="), named(attributes), False)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    return _op(dy, ctx.src), None, *[None for _ in DEFAULTS]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.src = row_of(inputs[0], "cast").name


def _batched(info: Any, dims: tuple[Any, ...], x: torch.Tensor, to: str, *attributes: Any) -> Any:
    """An element-wise op takes a batch as it is; in the bytes of a packed type a batch could not be told apart."""
    if dtype(to, who="cast: to=").packed:
        raise TypeError(f"cast: torch.vmap cannot batch a cast to {to}, whose elements share bytes")
    return _op(x, to, *attributes), dims[0]


_op: Any = torch.library.custom_op("gpucast::cast", _cast, mutates_args=(), schema=f"(Tensor x, {_SCHEMA}) -> Tensor")
_op.register_fake(new)
_op.register_autograd(_backward, setup_context=_setup)
_op.register_vmap(_batched)
_op_out: Any = torch.library.custom_op(
    "gpucast::cast_out", _cast_out, mutates_args=("out",), schema=f"(Tensor x, Tensor(a!) out, {_SCHEMA}) -> ()"
)
_op_out.register_fake(lambda *arguments: None)


# ---- many tensors ----


def reader(kind: type) -> many_plans.Reader | None:
    """The `gpucast.casting.batch_plans.Reader` of a class of tensors; None for one that may mean anything by its
    methods."""
    from gpucast.interop import torch_many

    return torch_many.Reader() if kind in (torch.Tensor, torch.nn.Parameter) else None


def attach(sources: list[torch.Tensor], results: list[Any], scale: Any) -> list[Any]:
    """See `gpucast.arrays.item.Library`."""
    from gpucast.interop import torch_many

    return torch_many.attach(sources, results, scale)
