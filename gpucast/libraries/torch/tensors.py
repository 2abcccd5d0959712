# SPDX-License-Identifier: Apache-2.0
"""Tensors: their memory as NumPy and CuPy arrays, their types, shapes and streams, and which may be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from gpucast.arrays.bitpacking import codes_of, namespace
from gpucast.arrays.packed import LibraryPackedArray, PackedArray
from gpucast.casting import engines
from gpucast.casting.cast import cast_with, check_packed_out
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.rule import Options, resolve
from gpucast.kernel import streams
from gpucast.libraries import dlpack

#: torch's dtypes with one element per item; types below one byte take a byte each.
TORCH_DTYPES: dict[DType, Any] = {
    kind: getattr(torch, kind.numpy_name) for kind in DTYPES if hasattr(torch, kind.numpy_name)
}
#: For each of them the torch dtype of its codes; and the inverse of TORCH_DTYPES.
_CODES: dict[DType, Any] = {kind: getattr(torch, kind.code_numpy.name) for kind in TORCH_DTYPES}
BY_TORCH: dict[Any, DType] = {torch_dtype: kind for kind, torch_dtype in TORCH_DTYPES.items()}
#: torch's dtype with two elements of FLOAT4E2M1 per byte, the first in the low bits; None for a torch without it.
PAIRS: Any = getattr(torch, "float4_e2m1fn_x2", None)
PAIRED = dtype("FLOAT4E2M1")
#: The classes of tensors that mean their numbers and no more. A subclass may redefine any method.
OWN_CLASSES = (torch.Tensor, torch.nn.Parameter)
#: The addresses of the functions by which compiled code looks at tensors, and finds the current stream; 0 for a torch
#: that does not offer them.
VIEW, STREAM = dlpack.functions(torch.Tensor)
DEFAULTS = {"saturate": True, "round_mode": "up", "opset": None, "rounding": None, "overflow": None}


def take(x: torch.Tensor, caller: str, writing: bool = False) -> Any:
    """An array over a tensor's memory: NumPy, CuPy or, for float4 pairs, a PackedArray."""
    src, device = dtype_of(x, caller), device_of(x, caller)
    if writing:
        check_writable(x, caller)
        written(x)
    elif x.requires_grad:
        x = x.detach()
    if x.is_neg():
        x = x.resolve_neg()
    if x.dtype is not PAIRS:
        return view(x, src, device, caller)
    codes = view(x.view(torch.uint8).reshape(-1), dtype("UINT8"), device, caller)
    return PackedArray(codes, src, tuple(shape_of(x)))


_is_inference = torch.Tensor.is_inference
#: Whether torch takes several tensors at a time.
_TAKES_LISTS = "Iterable" in str(torch.autograd.graph.increment_version.__annotations__.get("tensor"))


def written(x: torch.Tensor | list[torch.Tensor]) -> None:
    """Tell autograd that a tensor, or each of several, was changed, so that values it saved are invalid."""
    tensors = x if isinstance(x, list) else [x]
    if any(map(_is_inference, tensors)):
        tensors = [one for one in tensors if not one.is_inference()]
    if len(tensors) == 1 or not _TAKES_LISTS:
        for one in tensors:
            torch.autograd.graph.increment_version(one)
    else:
        torch.autograd.graph.increment_version(tensors)


def check_writable(out: torch.Tensor, caller: str) -> None:
    if out.requires_grad:
        raise ValueError(f"{caller}: out requires grad; expected a tensor that does not, such as out.detach()")
    # torch.compile does not support is_neg.
    negated = not torch.compiler.is_compiling() and out.is_neg()
    if negated or (out.dtype is PAIRS and not out.is_contiguous()):
        raise ValueError(f"{caller}: out is a negated view, or pairs that are not contiguous; expected plain memory")


def view(x: torch.Tensor, src: DType, device: int | None, caller: str) -> Any:
    """An array over a tensor of one element per item, whose type and device are known."""
    try:
        begin = address(x)
        if device is None:
            return x.view(_CODES[src]).numpy().view(src.numpy)
    except RuntimeError as error:
        raise TypeError(
            f"{caller}: x is a {type(x).__name__} without memory of its own, as within a transform of torch.func, "
            "while torch traces a graph, or after its storage was resized to 0; expected one with elements to read"
        ) from error
    strides = tuple(stride * x.element_size() for stride in x.stride())
    return engines.of(device).view(begin, tuple(x.shape), strides, src, x)


def address(x: torch.Tensor) -> int:
    """The address of a tensor. RuntimeError for one that has elements but no memory: torch would give a NumPy array of
    other memory."""
    # data_ptr of a fake tensor would warn.
    fake = type(x) is not torch.Tensor and x.untyped_storage().device.type == "meta"
    if x.numel() and (fake or not has_memory(x)):
        raise RuntimeError("it has no memory")
    return 0 if fake else int(x.data_ptr())


def has_memory(x: torch.Tensor) -> bool:
    """Whether the elements of a strided tensor are in memory. Tensors of zeros that torch keeps as such have none, nor
    have those whose storage was given back: of both the address is the offset in the storage."""
    return bool(x.data_ptr() != x.storage_offset() * x.element_size())


def without_gradients(arrays: Sequence[Any], dst: DType | None = None) -> list[torch.Tensor] | None:
    """See `gpucast.arrays.libraries.Library.without_gradients`."""
    if not set(map(type, arrays)).issubset(OWN_CLASSES) or torch.compiler.is_compiling() or is_watched():
        return None
    if torch.is_grad_enabled() and (dst is None or (dst.is_float and not has_tensors(dst))):
        return None
    if not any(map(_requires_grad, arrays)) or any(map(_is_meta, arrays)) or _stand_for_others(arrays):
        return None
    return [x.detach() for x in arrays]


_requires_grad, _is_meta, _place = attrgetter("requires_grad"), attrgetter("is_meta"), attrgetter("device", "layout")


def placed(arrays: Sequence[Any], writing: bool = False) -> tuple[int | None, list[int]] | None:
    """See `gpucast.arrays.libraries.Library.placed`."""
    if not set(map(type, arrays)).issubset(OWN_CLASSES) or torch.compiler.is_compiling() or is_watched():
        return None
    if (writing or torch.is_grad_enabled()) and any(map(_requires_grad, arrays)):
        return None
    places = set(map(_place, arrays))
    if len(places) > 1 or any(layout is not torch.strided for _, layout in places):
        return None
    if any(map(torch.Tensor.is_neg, arrays)) or not all(map(torch.Tensor.is_contiguous, arrays)):
        return None
    if _stand_for_others(arrays):
        return None
    # Of memory that was given back the address is not 0.
    at = [x.data_ptr() * has_memory(x) for x in arrays] if any(map(torch.Tensor.storage_offset, arrays)) else None
    at = list(map(torch.Tensor.data_ptr, arrays)) if at is None else at
    if not all(at) and any(x.numel() and not one for x, one in zip(arrays, at, strict=True)):
        return None
    return device_of(arrays[0], "plan") if arrays else None, at


def dtype_of(x: torch.Tensor, caller: str) -> DType:
    """The dtype of a tensor. TypeError for tensors that are not plain strided memory with numbers."""
    # torch.compile does not support layout in a backward function; the operator itself looks again.
    if x.is_nested or not (torch.compiler.is_compiling() or x.layout is torch.strided):
        layout = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise TypeError(
            f"{caller}: x has the layout {layout}; expected a strided tensor: cast x.values() or x.to_dense()"
        )
    if x.is_quantized:
        raise TypeError(f"{caller}: x is quantized; cast x.int_repr() or x.dequantize()")
    return BY_TORCH.get(x.dtype) or dtype(x.dtype, caller=f"{caller}: x.dtype=")


def device_of(x: torch.Tensor, caller: str) -> int | None:
    """The index of the CUDA device that holds a tensor; None for the host."""
    if x.is_cpu:
        return None
    if x.is_cuda:
        return int(x.device.index)
    where = "is a meta tensor, which has no elements" if x.is_meta else f"is on {x.device}"
    raise TypeError(f"{caller}: x {where}; expected a tensor on 'cpu' or 'cuda'")


def stream(device: int) -> int:
    """torch's current stream of a CUDA device."""
    return int(torch.cuda.current_stream(device).cuda_stream)


_transforms: Any = getattr(torch._C, "_are_functorch_transforms_active", bool)
_forward_ad: Any = torch.autograd.forward_ad
#: Functions whose results are true while a mode, a tracer or a transform of torch wants to see the operations.
WATCHING: tuple[Callable[[], Any], ...] = (
    torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack, torch._C._get_tracing_state, _transforms,
)  # fmt: skip
#: Forward mode's level is among these names, -1 or missing where it is off.
FORWARD_NAMES: dict[str, Any] = vars(_forward_ad)


def transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward mode is active, and no graph is being compiled.

    They do not differentiate custom ops, and forward mode does not even report it.
    """
    return not torch.compiler.is_compiling() and (_transforms() or getattr(_forward_ad, "_current_level", -1) >= 0)


def is_watched() -> bool:
    """Whether a transform or a mode of torch wants to see the operations."""
    # A generator would take twice as long.
    for function in WATCHING:
        if function():
            return True
    return bool(FORWARD_NAMES.get("_current_level", -1) >= 0)


_functorch: Any = torch._C._functorch


def is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor is no more than numbers in its memory and a gradient, and nothing of torch sees the operations.

    It is more where it stands for others, as one of a batch of gradients does, and less as a meta tensor, without
    elements.
    """
    if type(x) not in OWN_CLASSES or torch.compiler.is_compiling() or is_watched() or x.is_meta:
        return False
    return not (_functorch.is_functorch_wrapped_tensor(x) or _functorch.is_legacy_batchedtensor(x))


def is_batched(x: torch.Tensor) -> bool:
    """Whether a tensor is a batch of gradients (``torch.autograd.grad(is_grads_batched=True)``), without memory."""
    return bool(_functorch.is_legacy_batchedtensor(x))


def _stand_for_others(arrays: Sequence[torch.Tensor]) -> bool:
    """Whether any of them does, as in `is_plain`."""
    return any(map(_functorch.is_functorch_wrapped_tensor, arrays)) or any(
        map(_functorch.is_legacy_batchedtensor, arrays)
    )


def check_pairs(shape: Any, dst: DType, caller: str) -> None:
    if dst is PAIRED and PAIRS is not None and (not shape or shape[-1] % 2):
        raise ValueError(
            f"{caller}: x has shape {tuple(shape)}; torch has FLOAT4E2M1 in pairs along the last axis, whose "
            "length must be even: pad it, or cast an array of NumPy or CuPy"
        )


def has_tensors(dst: DType) -> bool:
    """Whether casts to a type are tensors: of its elements, or of pairs of them."""
    return PAIRS is not None if dst is PAIRED else not dst.packed and dst.family != "string"


def as_result(y: torch.Tensor, shape: Any, dst: DType, caller: str) -> Any:
    """The result of an op in the form that the caller gets: as it is, or as a PackedArray over its bytes."""
    return y if has_tensors(dst) else LibraryPackedArray(take(y, caller), dst, tuple(shape), "torch")


def check_gradient(x: torch.Tensor, dst: DType, caller: str) -> None:
    """ValueError if a tensor requires a gradient and is cast to a float type that torch lacks."""
    if dst.is_float and not has_tensors(dst) and x.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{caller}: x requires grad, and {dst.name} becomes a PackedArray, through which torch passes no gradient; "
            "pass x.detach(), and where the gradient is needed take it from the layer "
            f"gpucast.layers.Cast({dst.name!r}): forward(x.detach()), then backward(dy)"
        )


def check_batched(to: str, caller: str = "cast") -> None:
    """TypeError for a type whose results torch.vmap cannot split into batches."""
    if not has_tensors(dtype(to, caller=f"{caller}: to=")):
        raise TypeError(f"{caller}: torch.vmap cannot batch a cast to {to}, whose elements share bytes")


def from_array(x: Any) -> Any:
    """Wrap memory: as a tensor, as a PackedArray that goes back to tensors, or text as it is."""
    if isinstance(x, PackedArray):
        if x.dtype is PAIRED and PAIRS is not None and x.shape and x.shape[-1] % 2 == 0:
            return from_packed(x)
        return LibraryPackedArray(x.data, x.dtype, x.shape, "torch")
    kind = dtype(x.dtype)
    if kind not in TORCH_DTYPES:
        return x
    codes = codes_of(x, kind.code_numpy)
    y = torch.from_numpy(codes) if isinstance(codes, np.ndarray) else torch.utils.dlpack.from_dlpack(codes)
    return y.view(TORCH_DTYPES[kind])


def named(attributes: tuple[Any, ...]) -> dict[str, Any]:
    """The attributes of an op as keywords of a cast. torch omits trailing arguments that have their default."""
    return dict(zip(DEFAULTS, attributes, strict=False))


def check_scale(scale: torch.Tensor, caller: str) -> None:
    """ValueError for a scale that requires a gradient."""
    if scale.requires_grad:
        raise ValueError(f"{caller}: scale requires grad, and is not differentiable; pass scale.detach()")


def check_into(x: torch.Tensor, caller: str) -> None:
    """ValueError for a tensor that requires a gradient, when its cast is written to an `out`."""
    check_constant(x, caller, "out= is not differentiable; pass x.detach(), or no out")


def check_constant(x: torch.Tensor, caller: str, instead: str) -> None:
    """ValueError for a tensor that requires a gradient, where one would be recorded."""
    if torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(f"{caller}: x requires grad, and {instead}")


def check_out(x: torch.Tensor, dst: DType, out: Any, caller: str) -> None:
    """Refuse an `out` that no tensor is cast into; arrays of NumPy and CuPy are checked where they are written."""
    check_into(x, caller)
    if isinstance(out, PackedArray) or namespace(out) is not None:
        return
    if not isinstance(out, torch.Tensor):
        wanted = "a PackedArray" if dst.packed and dst is not PAIRED else "a tensor"
        shape = tuple(shape_of(x))
        raise TypeError(f"{caller}: out is {type(out).__name__}; expected {wanted} of {dst.name} and shape {shape}")
    check_writable(out, caller)
    if out.device != x.device:
        raise ValueError(f"{caller}: out is on {out.device}; the result belongs on {x.device}")


def from_packed(x: PackedArray) -> torch.Tensor:
    """See `PackedArray.to_torch`."""
    kind = x.dtype
    if not x.shape or x.shape[-1] * kind.bits % 8:
        raise ValueError(
            f"PackedArray: a tensor of bytes needs a last axis of whole bytes; {kind.name} of shape {x.shape} has not"
        )
    if isinstance(x.data, np.ndarray):
        # torch has no read-only tensors.
        y = torch.from_numpy(x.data if x.data.flags.writeable else x.data.copy())
    else:
        y = torch.utils.dlpack.from_dlpack(x.data)
    y = y.reshape(*x.shape[:-1], x.shape[-1] * kind.bits // 8)
    return y.view(PAIRS) if kind is PAIRED and PAIRS is not None else y


def shape_of(x: torch.Tensor) -> Any:
    """The shape of the elements."""
    if x.dtype is not PAIRS:
        return x.shape
    return (*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else (2,)


def new(x: torch.Tensor, to: str, *attributes: Any, caller: str = "cast") -> torch.Tensor:
    """A new tensor for a result: in order "K" for whole-byte types, pairs, or the flat bytes of a packed type."""
    src, dst = dtype_of(x, caller), dtype(to, caller=f"{caller}: to=")
    if attributes:
        resolve(src, dst, Options(**named(attributes)))
    if dst.family == "string":
        raise TypeError(f"{caller}: torch has no STRING; gpucast.cast gives a NumPy array")
    if dst is PAIRED and PAIRS is not None:
        shape = shape_of(x)
        check_pairs(shape, dst, caller)
        return x.new_empty((*shape[:-1], shape[-1] // 2), dtype=PAIRS)
    if dst.packed:
        return x.new_empty(dst.nbytes(x.numel() * (2 if x.dtype is PAIRS else 1)), dtype=torch.uint8)
    if dst not in TORCH_DTYPES:
        raise TypeError(f"{caller}: this torch ({torch.__version__}) has no {dst.numpy_name}")
    if x.dtype is PAIRS:
        return x.new_empty(shape_of(x), dtype=TORCH_DTYPES[dst])
    return torch.empty_like(x, dtype=TORCH_DTYPES[dst])


def fill(
    x: torch.Tensor,
    y: Any,
    dst: DType,
    keywords: dict[str, Any],
    bytes_only: bool,
    function: Callable[[Any, DType, Options], Any] = cast_with,
    caller: str = "cast",
) -> None:
    """Cast a tensor into a tensor or an array, by a function like `cast_with`; `bytes_only`: `y` is the bytes of a
    packed type."""
    options = Options(**keywords, caller=caller)
    with streams.visit(x, y, keywords.get("scale"), keywords.get("amax")):
        array = take(x, caller)
        out = take(y, caller, writing=True) if isinstance(y, torch.Tensor) else y
        if bytes_only:
            out = PackedArray(out, dst, array.shape)
        if not (isinstance(array, np.ndarray) and isinstance(out, PackedArray)):
            function(array, dst, options._replace(out=out))
            return
        if not bytes_only and function is cast_with:
            check_packed_out(array, dst, out, options)
        # On the host `cast` returns one element per byte, so the result has to be packed.
        out.data[...] = PackedArray.pack(function(array, dst, options)).data
