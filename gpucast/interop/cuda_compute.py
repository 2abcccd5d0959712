# SPDX-License-Identifier: Apache-2.0
"""Casts in the algorithms of ``cuda.compute`` (cuda-cccl): iterators that read and write narrow types.

`CastIterator` gives the numbers of an array of codes, so that a reduction, a scan or a sort reads float8 and computes
in float32. `CastOutputIterator` takes the numbers of an algorithm, and writes codes. Both cast each element as
`gpucast.cast` does, in the registers of the algorithm's own kernel::

    import cuda.compute, cupy, numpy as np
    from gpucast.interop.cuda_compute import CastIterator, CastOutputIterator

    total = cupy.empty(1, np.float32)
    cuda.compute.reduce_into(
        d_in=CastIterator(codes, "FLOAT", "FLOAT8E4M3FN"), d_out=total, num_items=codes.size,
        op=cuda.compute.OpKind.PLUS, h_init=np.zeros(1, np.float32))

    cuda.compute.unary_transform(
        d_in=x, d_out=CastOutputIterator(codes, "FLOAT", "FLOAT8E4M3FN"), num_items=x.size,
        op=cuda.compute.OpKind.NEGATE)

`cast_op` is the cast alone, as an operator: ``unary_transform(op=cast_op("FLOAT", "FLOAT8E4M3FN"), ...)``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from cuda.compute import CountingIterator, TransformIterator, TransformOutputIterator, types
from cuda.compute.iterators import IteratorBase
from cuda.compute.op import RawOp
from cuda.core import Device, Program, ProgramOptions
from numpy import int64

from gpucast.codegen.device_functions import device_function, held_as
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options, resolve


class _PackedOp(RawOp):  # type: ignore[misc]
    """An operator whose state points to an array, which lives as long as it."""

    __slots__ = ("array",)


def cast_op(src: Any, dst: Any, *, arch: str | None = None, **attributes: Any) -> RawOp:
    """The cast of one element as an operator of ``cuda.compute``, compiled by NVRTC.

    `arch`, such as "sm_90", is the current device's by default. To build an algorithm for several, name the oldest.
    `attributes` are `saturate`, `round_mode`, `opset`, `rounding` and `overflow` of `gpucast.cast`; errors as for it,
    and ValueError for STRING and for random rounding, which needs the place of an element.
    """
    return _operator(_source(src, dst, attributes, caller="cast_op"), arch)


class CastIterator(TransformIterator):  # type: ignore[misc]
    """Elements of a contiguous array on a device, or of another iterator, cast as they are read.

    `src` is the type of the elements, by default that of the array: CuPy's arrays may have the types of ml_dtypes. Of
    other libraries pass the codes as unsigned integers, such as ``t.view(torch.uint8)``, and `src`. Results of types
    that ``cuda.compute`` lacks (float8 and smaller) are codes in uint8. With ``packed=True`` the array holds codes of 4
    or 2 bits as ONNX packs them, two or four to a byte. `arch` and `attributes` are those of `cast_op`. TypeError for
    any other array.
    """

    def __init__(
        self, x: Any, to: Any, src: Any = None, *, packed: bool = False, arch: str | None = None, **attributes: Any
    ) -> None:
        array = _contiguous(x, "CastIterator")
        found = _source(_element(x) if src is None else src, to, attributes, packed, "CastIterator")
        op = _operator(found, arch, array if packed else None)
        super().__init__(CountingIterator(int64(0)) if packed else array, op, _value_type(found.rule.dst))


class CastOutputIterator(TransformOutputIterator):  # type: ignore[misc]
    """A contiguous array on a device, or another iterator, to which the numbers of an algorithm are cast.

    The algorithm gives elements of the type `src`. `to` is the type of the array, by default the one that it has; see
    `CastIterator`.
    """

    def __init__(self, y: Any, src: Any, to: Any = None, *, arch: str | None = None, **attributes: Any) -> None:
        array = _contiguous(y, "CastOutputIterator")
        found = _source(src, _element(y) if to is None else to, attributes, caller="CastOutputIterator")
        super().__init__(array, _operator(found, arch), _value_type(found.rule.src))


class _Source(NamedTuple):
    rule: CastRule
    #: The name of the operator's function, and the text.
    name: str
    text: str


def _source(src: Any, dst: Any, attributes: dict[str, Any], packed: bool = False, caller: str = "") -> _Source:
    source, target = dtype(src, caller=f"{caller}: src="), dtype(dst, caller=f"{caller}: to=")
    text = device_function(source, target, **attributes)
    rule = resolve(source, target, Options(**attributes, caller=caller))
    if rule.rounding == STOCHASTIC:
        raise ValueError(f"{caller}: rounding='stochastic' needs the place of an element, which no operator has")
    result, argument = (held_as(kind).replace("bool", "unsigned char") for kind in (target, source))
    arguments, value = "void* x", f"*static_cast<const {argument}*>(x)"
    if packed:
        if source.bits not in (2, 4):
            raise ValueError(f"{caller}: packed=True is for types of 4 and 2 bits; src={source.name}")
        # A number is counted, and the array is the operator's state.
        arguments, count = "void* x, void* index", 8 // source.bits
        place = "*static_cast<const long long*>(index)"
        value = f"(*static_cast<unsigned char* const*>(x))[{place} / {count}] >> {place} % {count} * {source.bits}"
    name = rule.function.replace("gpucast_", f"gpucast_compute_{'packed_' * packed}", 1)
    value += " != 0" * (source.family == "bool")
    line = f"*static_cast<{result}*>(y) = {rule.function}({value});"
    return _Source(rule, name, f'{text}extern "C" __device__ void {name}({arguments}, void* y) {{ {line} }}\n')


def _element(x: Any) -> Any:
    return x.value_type.dtype if isinstance(x, IteratorBase) else x.dtype


def _contiguous(x: Any, caller: str) -> Any:
    """What cuda.compute reads by a pointer alone, without strides."""
    if isinstance(x, IteratorBase):
        return x
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None or interface.get("strides") is not None:
        raise TypeError(f"{caller}: {type(x).__name__} is not a contiguous array on a device, nor an iterator")
    return x


def _value_type(kind: DType) -> Any:
    own = kind.name == "BFLOAT16" or kind.numpy.isbuiltin == 1
    return types.from_numpy_dtype(kind.numpy if own else kind.code_numpy)


def _operator(found: _Source, arch: str | None, packed: Any = None) -> RawOp:
    code = _compiled(found.text, arch or "sm_{}{}".format(*Device().compute_capability))
    if packed is None:
        return RawOp(ltoir=code, name=found.name)
    address = packed.__cuda_array_interface__["data"][0].to_bytes(8, "little")
    op = _PackedOp(ltoir=code, name=found.name, state=address, state_alignment=8)
    op.array = packed
    return op


@lru_cache
def _compiled(text: str, arch: str) -> bytes:
    options = ProgramOptions(arch=arch, relocatable_device_code=True, link_time_optimization=True, std="c++17")
    return bytes(Program(text, "c++", options=options).compile("ltoir").code)
