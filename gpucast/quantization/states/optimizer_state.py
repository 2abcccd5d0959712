# SPDX-License-Identifier: Apache-2.0
"""States of optimizers in 8 bits: blocks of 256 FLOATs, each with a scale, whose codes are places in a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.arrays import adapters
from gpucast.arrays.adapters import untraced
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.chunks import spans
from gpucast.arrays.operand import check_written
from gpucast.arrays.packed import PackedArray, as_array, device_index
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import dtype
from gpucast.gpu import devices, streams
from gpucast.quantization import gpu
from gpucast.quantization.states.codebooks import Codebook, find
from gpucast.quantization.states.step import dequantizing, quantizing

#: The length of a block.
BLOCK = 256
_NAN = np.uint32(0x7FC00000).view(np.float32)


def quantize_state(x: Any, codebook: str = "torchao-dynamic8", *, out: Any = None) -> tuple[Any, Any]:
    """Quantize the state of an optimizer to 8-bit codes with a FLOAT scale for each 256 elements.

    Parameters
    ----------
    x
        An array of FLOAT with a multiple of 256 elements, blocks of which are adjacent in C order.
    codebook
        "torchao-dynamic8" for states of both signs, or "torchao-dynamic8-unsigned" for those that are never negative,
        such as squares; negative numbers have the code 0 there. The bits are those of torchao on x86 processors with
        AVX2; elsewhere some numbers of PyTorch's own table are one or two units in the last place away.
    out
        A pair of arrays, UINT8 of x's shape and FLOAT of shape (x.size / 256,), which are written and returned. Then
        a device allocates nothing, and a CUDA graph can capture a call that was made before.

    Returns
    -------
    (codes, scales) of x's library, where x is. A scale is the largest magnitude of its block, at least 1e-12. A block
    with NaN has the scale NaN and codes of 0. A block with an infinity has an infinite scale: infinities have the code
    0, all other elements that of zero.

    Raises
    ------
    TypeError
        For arrays of other types.
    ValueError
        For another codebook, another number of elements, or an `out` that does not fit or shares memory with x.
    RuntimeError
        When a CUDA graph is captured and the call would have to allocate memory.
    """
    return untraced(_quantized, x, codebook, out)  # type: ignore[no-any-return]


def dequantize_state(codes: Any, scales: Any, codebook: str = "torchao-dynamic8", *, out: Any = None) -> Any:
    """The FLOATs of codes and scales from `quantize_state`: the number of the code times the scale, rounded once.

    `out`: a FLOAT array of the codes' shape, which is written and returned. Every NaN is 0x7fc00000.

    TypeError for arrays of other types. ValueError for another codebook, shapes that do not go together, arrays in
    different places, or an `out` that does not fit or shares memory with another array. RuntimeError as for
    `quantize_state`.
    """
    return untraced(_dequantized, codes, scales, codebook, out)


@exact()
def _quantized(x: Any, codebook: Any, out: Any) -> Any:
    caller = "quantize_state"
    book = find(codebook, caller)
    codes, scales = (None, None) if out is None else pair(out, "out", caller)
    with streams.visit(x, codes, scales):
        given = _checked(x, "x", "float32", caller)
        blocks, device = blocks_of(given, caller), device_index(given)
        to = _result(codes, "codes", given.shape, "uint8", device, caller)
        of_blocks = _result(scales, "scales", (blocks,), "float32", device, caller)
        check_written([("codes", to), ("scales", of_blocks)], [("x", given)], caller)
        if device is None:
            flat = np.ascontiguousarray(given).reshape(-1)
            for part in spans(flat.size):
                to.reshape(-1)[part], of_blocks[_scales(part)] = _codes_of(flat[part], book)
        elif given.size:
            arrays, of = {"x": given, "y": to}, {"y": of_blocks}
            gpu.state_on_gpu.run(quantizing(codebook), arrays, of, given.shape, device)
        return (_given_back(to, x), _given_back(of_blocks, x)) if out is None else out


@exact()
def _dequantized(codes: Any, scales: Any, codebook: Any, out: Any) -> Any:
    caller = "dequantize_state"
    book = find(codebook, caller)
    with streams.visit(codes, scales, out):
        given, of_blocks = _checked(codes, "codes", "uint8", caller), _checked(scales, "scales", "float32", caller)
        blocks, device = blocks_of(given, caller), device_index(given)
        if of_blocks.shape != (blocks,):
            raise ValueError(f"{caller}: scales has shape {of_blocks.shape}; expected ({blocks},), one for each block")
        if device_index(of_blocks) != device:
            raise ValueError(f"{caller}: codes and scales are not in one place")
        to = _result(out, "out", given.shape, "float32", device, caller)
        check_written([("out", to)], [("codes", given), ("scales", of_blocks)], caller)
        if device is None:
            flat = np.ascontiguousarray(given).reshape(-1)
            for part in spans(flat.size):
                to.reshape(-1)[part] = _numbers_of(flat[part], of_blocks[_scales(part)], book)
        elif given.size:
            dense = gpu.state_on_gpu.dense
            arrays, of = {"x": dense(given, "codes", caller), "y": to}, {"x": dense(of_blocks, "scales", caller)}
            gpu.state_on_gpu.run(dequantizing(codebook), arrays, of, given.shape, device)
        return _given_back(to, codes) if out is None else out


def _codes_of(x: Any, book: Codebook) -> tuple[Any, Any]:
    """The codes and scales of whole blocks of FLOATs on the host."""
    blocks = x.reshape(-1, BLOCK)
    amax = np.abs(blocks).max(1)
    scales = np.where(np.isnan(amax), _NAN, np.maximum(amax, np.float32(book.least)))
    shares = (blocks / scales[:, None]).reshape(-1)
    return np.where(np.isnan(shares), 0, np.searchsorted(book.limits, shares, side="right")), scales


def _numbers_of(codes: Any, scales: Any, book: Codebook) -> Any:
    """The FLOATs of codes of whole blocks on the host."""
    numbers = (book.numbers[codes.reshape(-1, BLOCK)] * scales[:, None]).reshape(-1)
    return np.where(np.isnan(numbers), _NAN, numbers)


def _scales(part: slice) -> slice:
    """The places of the scales of some whole blocks."""
    return slice(part.start // BLOCK, part.stop // BLOCK)


def pair(given: Any, name: str, caller: str) -> tuple[Any, Any]:
    """Codes and scales. TypeError for anything else."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"{caller}: {name}={type(given).__name__} must be a pair of arrays, codes and scales")
    return given[0], given[1]


def _checked(x: Any, name: str, kind: Any, caller: str) -> Any:
    array = as_array(x, caller)
    if isinstance(array, PackedArray) or array.dtype != dtype(kind).numpy:
        raise TypeError(f"{caller}: {name} has dtype {array.dtype}; expected {dtype(kind)}")
    return array


def blocks_of(x: Any, caller: str) -> int:
    if x.size % BLOCK:
        raise ValueError(f"{caller}: {x.size} elements are no multiple of {BLOCK}")
    return int(x.size) // BLOCK


def _result(out: Any, name: str, shape: tuple[int, ...], kind: str, device: int | None, caller: str) -> Any:
    """The native array over an `out` that can take a result, or a new one."""
    if device is not None:
        devices.require(caller)
    if out is not None:
        return checked_written(out, name, shape, kind, device, caller)
    return np.empty(shape, kind) if device is None else gpu.state_on_gpu.new(shape, kind, device, caller)


def checked_written(out: Any, name: str, shape: tuple[int, ...], kind: Any, device: int | None, caller: str) -> Any:
    """The native array over one that can take a result. TypeError or ValueError otherwise."""
    adapter = adapters.find(out)
    if adapter is None and namespace(out) is None:
        raise TypeError(f"{caller}: {name} is {type(out).__name__}; expected an array that can be written")
    array = _checked(out if adapter is None else adapter.take(out, caller, writing=True), name, kind, caller)
    if array.shape != shape:
        raise ValueError(f"{caller}: {name} has shape {array.shape}; expected {shape}")
    check_place(array, name, device, caller)
    if device is not None and array.data.ptr % array.itemsize:
        raise ValueError(f"{caller}: the address of {name} is no multiple of {array.itemsize} bytes")
    return array


def check_place(array: Any, name: str, device: int | None, caller: str) -> None:
    if device_index(array) != device:
        there, here = devices.place(device_index(array)), devices.place(device)
        raise ValueError(f"{caller}: {name} is on {there}; expected {here}")


def _given_back(array: Any, x: Any) -> Any:
    library = adapters.library_of(x)
    return array if library is None else adapters.of_library(library).from_array(array)
