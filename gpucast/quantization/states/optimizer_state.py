# SPDX-License-Identifier: Apache-2.0
"""States of optimizers in 8 bits: blocks of 256 FLOATs, each with a scale, whose codes are places in a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.arrays import adapters
from gpucast.arrays.adapters import untraced
from gpucast.arrays.operand import check_written
from gpucast.arrays.packed import PackedArray, as_array, device_index
from gpucast.casting.creation import empty
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import dtype
from gpucast.gpu import devices, streams
from gpucast.quantization import gpu
from gpucast.quantization.states.codebooks import find

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
        A pair of arrays, UINT8 of x's shape and FLOAT of shape (x.size / 256,), which are written and returned.

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
    """
    return untraced(_quantized, x, codebook, out)  # type: ignore[no-any-return]


def dequantize_state(codes: Any, scales: Any, codebook: str = "torchao-dynamic8", *, out: Any = None) -> Any:
    """The FLOATs of codes and scales from `quantize_state`: the number of the code times the scale, rounded once.

    `out`: a FLOAT array of the codes' shape, which is written and returned. Every NaN is 0x7fc00000.

    TypeError for arrays of other types. ValueError for another codebook, shapes that do not go together, arrays in
    different places, or an `out` that does not fit or shares memory with another array.
    """
    return untraced(_dequantized, codes, scales, codebook, out)


@exact()
def _quantized(x: Any, codebook: Any, out: Any) -> Any:
    caller = "quantize_state"
    book = find(codebook, caller)
    codes, scales = (None, None) if out is None else _pair(out, caller)
    with streams.visit(x, codes, scales):
        source = _dense(_checked(x, "x", "float32", caller))
        read = [("x", source)]
        to = _written(codes, "codes", source.shape, "uint8", source, read, caller)
        of_blocks = _written(
            scales, "scales", (_blocks(source, caller),), "float32", source, [*read, ("codes", to)], caller
        )
        if device_index(source) is not None:
            if source.size:
                spec = gpu.state_on_gpu.StateSpec("quantize_state")
                table = [*book.limits.tolist(), 0.0]
                arguments = gpu.state_on_gpu.StateArguments(gpu.memory.address(of_blocks), book.least, table)
                gpu.state_on_gpu.run(spec, source, to, arguments)
        else:
            blocks = source.reshape(-1, BLOCK)
            with np.errstate(all="ignore"):
                amax = np.abs(blocks).max(1, initial=0)
                of_blocks[...] = np.where(np.isnan(amax), _NAN, np.maximum(amax, np.float32(book.least)))
                shares = blocks / of_blocks[:, None]
            found = np.searchsorted(book.limits, shares.reshape(-1), side="right").reshape(source.shape)
            to[...] = np.where(np.isnan(shares).reshape(source.shape), 0, found)
        return (_given_back(to, x), _given_back(of_blocks, x)) if out is None else out


@exact()
def _dequantized(codes: Any, scales: Any, codebook: Any, out: Any) -> Any:
    caller = "dequantize_state"
    book = find(codebook, caller)
    with streams.visit(codes, scales, out):
        source = _dense(_checked(codes, "codes", "uint8", caller))
        of_blocks = _dense(_checked(scales, "scales", "float32", caller))
        if of_blocks.shape != (_blocks(source, caller),):
            raise ValueError(
                f"{caller}: scales has shape {of_blocks.shape}; expected ({source.size // BLOCK},), one for each block"
            )
        if device_index(of_blocks) != device_index(source):
            raise ValueError(f"{caller}: codes and scales are not in one place")
        read = [("codes", source), ("scales", of_blocks)]
        to = _written(out, "out", source.shape, "float32", source, read, caller)
        if device_index(source) is not None:
            if source.size:
                spec = gpu.state_on_gpu.StateSpec("dequantize_state")
                table = book.numbers.tolist()
                arguments = gpu.state_on_gpu.StateArguments(gpu.memory.address(of_blocks), book.least, table)
                gpu.state_on_gpu.run(spec, source, to, arguments)
        else:
            with np.errstate(all="ignore"):
                numbers = book.numbers[source.reshape(-1, BLOCK)] * of_blocks[:, None]
            to[...] = np.where(np.isnan(numbers), _NAN, numbers).reshape(source.shape)
        return _given_back(to, codes) if out is None else out


def _pair(out: Any, caller: str) -> tuple[Any, Any]:
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(f"{caller}: out={type(out).__name__} must be a pair of arrays, codes and scales")
    return out[0], out[1]


def _checked(x: Any, name: str, kind: str, caller: str) -> Any:
    array = as_array(x, caller)
    if isinstance(array, PackedArray) or array.dtype != np.dtype(kind):
        raise TypeError(f"{caller}: {name} has dtype {array.dtype}; expected {dtype(kind)}")
    return array


def _blocks(x: Any, caller: str) -> int:
    if x.size % BLOCK:
        raise ValueError(f"{caller}: {x.size} elements are no multiple of {BLOCK}")
    return int(x.size) // BLOCK


def _dense(x: Any) -> Any:
    """The array, or a copy in C order."""
    if device_index(x) is None:
        return np.ascontiguousarray(x)
    return x if gpu.memory.is_dense(x) else _copied(x)


def _copied(x: Any) -> Any:
    made = empty(x.shape, x.dtype, device=devices.place(device_index(x)))
    gpu.memory.copy(x, made)
    return made


def _written(
    out: Any, name: str, shape: tuple[int, ...], kind: str, like: Any, read: list[tuple[str, Any]], caller: str
) -> Any:
    """The native array over an `out` that can take a result, or a new one where `like` is."""
    place = devices.place(device_index(like))
    if out is None:
        return empty(shape, kind, device=place)
    adapter = adapters.find(out)
    array = _checked(out if adapter is None else adapter.take(out, caller, writing=True), name, kind, caller)
    if array.shape != shape:
        raise ValueError(f"{caller}: {name} has shape {array.shape}; expected {shape}")
    if device_index(array) != device_index(like):
        raise ValueError(f"{caller}: {name} is on {devices.place(device_index(array))}; expected {place}")
    check_written([(name, array)], read, caller)
    return array


def _given_back(array: Any, x: Any) -> Any:
    library = adapters.library_of(x)
    return array if library is None else adapters.of_library(library).from_array(array)
