# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers whose states have 8 bits: dequantize, update, quantize and cast in one pass."""

from __future__ import annotations

import unicodedata
from collections.abc import Container
from typing import Any

import numpy as np

from gpucast.arrays import adapters
from gpucast.arrays.operand import check_written
from gpucast.arrays.packed import PackedArray, as_array, device_index
from gpucast.casting.cast import cast
from gpucast.codegen.ufunc_kernel import MAX_INPUTS
from gpucast.core.arithmetic import exact
from gpucast.core.checks import is_number, rounded
from gpucast.core.dtypes import DType, dtype
from gpucast.core.expression import parse
from gpucast.gpu import devices, streams
from gpucast.quantization import gpu
from gpucast.quantization.states.codebooks import NAMES
from gpucast.quantization.states.optimizer_state import (
    blocks_of,
    check_place,
    checked_written,
    dequantize_state,
    pair,
    quantize_state,
)
from gpucast.quantization.states.step import Step

_CALLER, _FLOAT = "optimizer_step", dtype("FLOAT")


def optimizer_step(text: str, /, **written: Any) -> OptimizerStep:
    """A step of an optimizer in one pass over memory: on a device one launch, which a CUDA graph can capture.

    Example: AdamW with a BFLOAT16 copy of FLOAT weights::

        adamw = optimizer_step(
            '''
            m = m + 0.1 * (g - m)
            v = v + 0.001 * (g * g - v)
            p = p - lr * (0.01 * p + m / c1 / (sqrt(v / c2) + 1e-8))
            w = p
            ''',
            m="torchao-dynamic8", v="torchao-dynamic8-unsigned", p="FLOAT", w="BFLOAT16",
        )  # fmt: skip
        adamw(m=(codes, scales), v=(other_codes, other_scales), p=p, w=w, g=g, lr=1e-3, c1=c1, c2=c2)

    Each line gives a name a new FLOAT for every element, by an expression of `gpucast.ufunc`; later lines see it. Every
    operation is rounded to nearest by itself, so the bits are the same on every machine. At the end all names with a
    new value are written.

    `written`: how each of these is kept. A codebook of `quantize_state`: as a pair of codes and scales, which is read
    as by `dequantize_state` and written as by `quantize_state`. Or a floating type of whole bytes: as an array, read
    and written as by `gpucast.cast`.

    Returns a function of all names by keyword, which writes and returns nothing. The other names stand for numbers and
    for arrays, which broadcast, such as a learning rate on the device; arrays of shape () of NumPy's own types are
    numbers, too. What is written has one shape, a multiple of 256 elements in C order, and shares no memory with other
    arrays. All arrays are on one device or on the host.

    TypeError or ValueError for other text, types and arrays.
    """
    return OptimizerStep(text, written)


class OptimizerStep:
    """What `optimizer_step` returns."""

    def __init__(self, text: Any, written: dict[str, Any]) -> None:
        if not isinstance(text, str):
            raise TypeError(f"{_CALLER}: text={text!r} must be a str")
        parts = [line.partition("=") for line in text.splitlines() if line.strip()]
        # As Python has names: parsed expressions have them in this form, too.
        lines = tuple(
            (unicodedata.normalize("NFKC", target.strip()), parse(expression, _CALLER))
            for target, _, expression in parts
        )
        for target, _ in lines:
            if not target.isidentifier():
                raise ValueError(f"{_CALLER}: {target!r} is no name that a line can give a value")
        books = tuple((name, kind) for name, kind in written.items() if isinstance(kind, str) and kind in NAMES)
        self._step, self._states = Step(_CALLER, lines, books), dict(books)
        if not written or self._step.written.keys() != written.keys():
            targets = ", ".join(self._step.written) or "nothing"
            raise ValueError(f"{_CALLER}: lines give values to {targets}, and {list(written)} are to be written")
        if len(self._step.names) > MAX_INPUTS:
            raise ValueError(f"{_CALLER}: {len(self._step.names)} names; a kernel takes {MAX_INPUTS}")
        #: Types; of states those of the codes.
        self._kinds = {name: _kind(name, kind, self._states) for name, kind in written.items()}

    def __call__(self, /, **arrays: Any) -> None:
        if arrays.keys() != set(self._step.names):
            raise TypeError(f"{_CALLER}: got {', '.join(arrays)}; expected {', '.join(self._step.names)}")
        adapters.untraced(self._call, arrays)

    @exact()
    def _call(self, given: dict[str, Any]) -> None:
        parts = {name: given[name] for name in self._step.names}
        for name in self._states:
            parts[name], parts[_scales_of(name)] = pair(given[name], name, _CALLER)
        with streams.visit(*([part for part in parts.values() if not is_number(part)] or [None])):
            caller = f"{_CALLER}: {self._step.names[0]}"
            first = as_array(parts[self._step.names[0]], caller)
            shape, device, blocks = tuple(first.shape), device_index(first), blocks_of(first, caller)
            wanted = {name: (shape, kind) for name, kind in self._kinds.items()}
            wanted |= {_scales_of(name): ((blocks,), _FLOAT) for name in self._states}
            arrays = {
                name: checked_written(part, name, *wanted[name], device, _CALLER)
                if name in wanted else self._input(name, part, shape, device)
                for name, part in parts.items()
            }  # fmt: skip
            read = [(name, x) for name, x in arrays.items() if name not in wanted and not isinstance(x, float)]
            check_written([(name, arrays[name]) for name in wanted], read, _CALLER)
            if device is None:
                self._on_host(arrays, shape)
            elif first.size:
                devices.require(_CALLER)
                scales = {name: arrays[_scales_of(name)] for name in self._states}
                gpu.state_on_gpu.run(self._step, arrays, scales, shape, device)

    def _input(self, name: str, x: Any, shape: tuple[int, ...], device: int | None) -> Any:
        if is_number(x):
            return rounded(x, np.float32)
        array = as_array(x, f"{_CALLER}: {name}")
        if isinstance(array, PackedArray) or dtype(array.dtype, caller=f"{_CALLER}: {name}: ").family == "string":
            raise TypeError(f"{_CALLER}: {name} has dtype {array.dtype}; expected numbers of whole bytes")
        if array.ndim > len(shape) or any(
            a not in (1, b) for a, b in zip(array.shape[::-1], shape[::-1], strict=False)
        ):
            raise ValueError(f"{_CALLER}: {name} has shape {array.shape}, which does not broadcast to {shape}")
        check_place(array, name, device, _CALLER)
        return array

    def _on_host(self, arrays: dict[str, Any], shape: tuple[int, ...]) -> None:
        values: dict[str, Any] = {}
        for name in self._step.read:
            x, book = arrays[name], self._states.get(name)
            values[name] = cast(x, _FLOAT) if book is None else dequantize_state(x, arrays[_scales_of(name)], book)
        for name, expression in self._step.lines:
            value = expression.evaluate([values[one] for one in expression.names], np.float32)
            values[name] = np.broadcast_to(value, shape)
        for name, kind in self._kinds.items():
            if name in self._states:
                quantize_state(values[name], self._states[name], out=(arrays[name], arrays[_scales_of(name)]))
            else:
                cast(values[name], kind, out=arrays[name])


def _scales_of(name: str) -> str:
    return f"the scales of {name}"


def _kind(name: str, kind: Any, states: Container[str]) -> DType:
    if name in states:
        return dtype("UINT8")
    found = dtype(kind, caller=f"{_CALLER}: {name}=")
    if not found.is_float or found.packed:
        raise ValueError(f"{_CALLER}: {name}={kind!r} is neither one of {NAMES} nor a floating type of whole bytes")
    return found
