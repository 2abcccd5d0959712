# SPDX-License-Identifier: Apache-2.0
"""Functions of several arrays that end in one cast: on a device one kernel, on the host NumPy and the host's casts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import user_kernels
from gpucast.arrays import libraries
from gpucast.arrays.array import Array
from gpucast.arrays.bitpacking import codes_of
from gpucast.arrays.chunks import CHUNK
from gpucast.arrays.packed import PackedArray, as_array
from gpucast.casting import calls, engines
from gpucast.casting.cast import cast
from gpucast.casting.engine import Call
from gpucast.casting.fuse import of_rule, resolve_fuse
from gpucast.core.arithmetic import exact
from gpucast.core.checks import cut, is_number, rounded
from gpucast.core.dtypes import dtype
from gpucast.core.rounding import Rounding
from gpucast.core.rule import (
    ATTRIBUTES,
    Options,
    OverflowKeyword,
    RoundMode,
    resolve,
)
from gpucast.kernel import devices
from gpucast.user_kernels.expression import COMPUTE, parse

#: To which arrays can be broadcast by NumPy.
_MOST_DIMENSIONS = 32
_KEYWORDS = ("out", "scale", "amax", "seed", "offset")


def ufunc(
    expression: str,
    out: Any,
    *,
    compute: Any = "FLOAT",
    saturate: bool = True,
    round_mode: RoundMode = "up",
    opset: int | None = None,
    rounding: Rounding | None = None,
    overflow: OverflowKeyword | None = None,
) -> Ufunc:
    """A function of arrays of any types: an expression, computed in `compute`, then cast once to the type `out`.

    Example: a residual, scaled to float8, in one pass over memory::

        f = gpucast.ufunc("a * b + c", out="FLOAT8E4M3FN")
        y = f(a, b, c, scale=0.5, amax=amax)

    Every input is cast to `compute`, FLOAT or DOUBLE. Each operation is rounded to nearest by itself (a product and a
    sum are not fused), and the value is cast as `cast` does, by the same attributes. So the bits are the same on every
    machine. A NaN that the expression gives is positive.

    An expression has names, numbers, ``+ - * /``, comparisons, ``and``, ``or``, ``not``, ``a if b else c``, and the
    functions ``abs``, ``sqrt``, ``minimum``, ``maximum`` and ``where``, with the meaning of NumPy. (Of equal numbers
    `minimum` and `maximum` give the second.) Functions that processors round differently, such as ``exp``, are not
    among them.

    The result is a `Ufunc`. TypeError for an unknown type; ValueError for another expression, illegal attributes and
    STRING.
    """
    return Ufunc(expression, out, compute, Options(saturate, round_mode, opset, rounding, overflow, caller="ufunc"))


class Ufunc:
    """A function that `ufunc` returns: ``f(*arrays, out=None, scale=None, amax=None, seed=None, offset=0)``.

    Arrays stand for the names of the expression, in the order in which these first appear (`names`), or by name. They
    are of any type but STRING, and broadcast as in NumPy; numbers, and arrays of shape () of NumPy's own types, are
    rounded once to `compute`. Other arrays lie in one place: the host, or one device. The keywords are those of
    `cast`, for the value of the expression: `amax` and random rounding see it as an array of the result's shape.

    The result has the library of the first array that is not NumPy's, and is C-contiguous. As in `cast`, types below
    one byte take one byte per element on the host, unless an input is a PackedArray, and are a PackedArray on a device.
    There are no gradients.
    """

    @exact()
    def __init__(self, expression: Any, out: Any, compute: Any, options: Options) -> None:
        self._expression = parse(expression, options.caller)
        self._compute = dtype(compute, caller="ufunc: compute=")
        self._dtype = dtype(out, caller="ufunc: out=")
        self._options = options
        #: The names of the arrays, in order.
        self.names = self._expression.names
        if self._compute not in COMPUTE:
            raise ValueError(f"ufunc: compute={self._compute.name} is not FLOAT or DOUBLE")
        if self._dtype.family == "string":
            raise ValueError("ufunc: out=STRING is not a type of numbers; cast the result of another type")
        taken = sorted({*self.names} & {*_KEYWORDS})
        if taken:
            raise ValueError(
                f"ufunc: expression={cut(expression)} names {taken[0]!r}, which is a keyword of the function"
            )
        # Illegal attributes are found now.
        resolve(self._compute, self._dtype, options)

    def __repr__(self) -> str:
        return f"gpucast.ufunc({self._expression.text!r}, out={self._dtype.name!r}, compute={self._compute.name!r})"

    def __call__(
        self,
        /,
        *arrays: Any,
        out: Any = None,
        scale: Any = None,
        amax: Any = None,
        seed: int | None = None,
        offset: int = 0,
        **named: Any,
    ) -> Any:
        given = dict(zip(self.names, arrays, strict=False))
        if len(arrays) > len(self.names) or given.keys() & named.keys() or {*given, *named} != {*self.names}:
            got = ", ".join([f"{len(arrays)} arrays", *named])
            raise TypeError(f"ufunc: got {got}; expected one for each of {', '.join(self.names)}")
        options = self._options._replace(seed=seed, offset=offset, scale=scale, amax=amax, out=out)
        given |= named
        return libraries.untraced(self._call, [given[name] for name in self.names], options)

    @exact()
    def _call(self, given: Sequence[Any], options: Options) -> Any:
        for x, name in zip(given, self.names, strict=True):
            if getattr(x, "requires_grad", False) is True:
                raise ValueError(f"ufunc: {name} requires a gradient, and there is none; pass {name}.detach()")
        home = next((x for x in given if libraries.find(x) is not None), None)
        arrays = [x for x in given if not is_number(x)]
        first, *others = [home, *arrays] if home is not None else arrays or [None]
        with libraries.visit(first, *others, options.out, options.scale, options.amax):
            y = self._evaluate(given, options)
            library = None if home is None else libraries.find(home)
            if options.out is not None or library is None:
                return y if options.out is None else options.out
            return library.give_back(y, home, "ufunc")

    def _evaluate(self, given: Sequence[Any], options: Options) -> Any:
        inputs = [self._input(x, name) for x, name in zip(given, self.names, strict=True)]
        operands = [one for one in inputs if isinstance(one, Array)] or [Array.of(np.zeros(()))]
        places = {one.device for one in operands}
        if len(places) > 1:
            raise ValueError(f"ufunc: arrays lie on {' and '.join(map(devices.name, places))}; expected one place")
        try:
            shape = np.broadcast_shapes(*(one.shape for one in operands))
        except ValueError:
            shapes = ", ".join(f"{name} {one.shape}" for name, one in zip(self.names, inputs, strict=True)
                               if isinstance(one, Array))  # fmt: skip
            raise ValueError(f"ufunc: shapes do not broadcast: {shapes}") from None
        device = operands[0].device
        rule = resolve(self._compute, self._dtype, options)
        engine = engines.of(device)
        fuse = of_rule(resolve_fuse(options, (device,)), rule, "ufunc")
        target, out = None, options.out
        packed = any(one.packed for one in operands)
        for one in operands:
            if out is not None:
                whole = replace(one, shape=shape, packed=packed)
                target = calls.target_of(whole, rule, out, engine, "ufunc")
                # It is taken from its library once.
                out = target.array
            call = Call("ufunc", one, rule, fuse, target)
            calls.check_fuse(call)
        engine.require("ufunc")
        return engine.pick(self._on_host, self._on_device)(inputs, shape, call, options)

    def _on_device(self, inputs: Sequence[Array | float], shape: tuple[int, ...], call: Call, options: Options) -> Any:
        return user_kernels.ufunc_cuda.apply(self._expression, inputs, shape, call).array

    def _input(self, x: Any, name: str) -> Array | float:
        """An array, or a number of the compute type."""
        if is_number(x):
            return rounded(x, self._compute.numpy.type)
        one = Array.of(as_array(x, f"ufunc: {name}"))
        if one.dtype.family == "string":
            raise TypeError(f"ufunc: {name} has dtype STRING; expected numbers")
        if len(one.shape) > _MOST_DIMENSIONS:
            raise ValueError(f"ufunc: {name} has {len(one.shape)} dimensions; expected at most {_MOST_DIMENSIONS}")
        return one

    def _on_host(self, inputs: Sequence[Array | float], shape: tuple[int, ...], call: Call, options: Options) -> Any:
        kind, target = self._dtype, call.target
        result = np.empty(shape, kind.numpy) if target is None or target.packed else target.data
        codes = [self._codes(one) for one in inputs]
        attributes: dict[str, Any] = {name: getattr(options, name) for name in ATTRIBUTES}
        # A scale that lies in the result, or in `amax`, is read once.
        attributes |= {"scale": call.fuse.scale, "amax": options.amax, "seed": options.seed}
        flags: Any = ["external_loop", "buffered", "zerosize_ok"]
        op_flags: Any = [*[["readonly"]] * len(codes), ["writeonly"]]
        with np.nditer(
            [*(code for code, _ in codes), codes_of(result, kind.code_numpy)], flags, op_flags,
            op_dtypes=[*(code.dtype.newbyteorder("=") for code, _ in codes), kind.code_numpy],
            itershape=shape, order="C", casting="equiv", buffersize=CHUNK,
        ) as chunks:  # fmt: skip
            begin = options.offset
            for *parts, written in chunks:
                if not written.size:
                    continue
                values = [
                    cast(part.view(numpy), self._compute, copy=False)
                    for part, (_, numpy) in zip(parts, codes, strict=True)
                ]
                value = self._expression.evaluate(values, self._compute.numpy)
                cast(value, kind, out=written.view(kind.numpy), offset=begin, **attributes)
                begin += written.size if options.seed is not None else 0
        if not (kind.packed and any(isinstance(one, Array) and one.packed for one in inputs)):
            return result
        whole = PackedArray.pack(result)
        if target is None:
            return whole
        target.data[...] = whole.data
        return target.array

    def _codes(self, one: Array | float) -> tuple[npt.NDArray[Any], np.dtype[Any]]:
        """An input as codes, which NumPy's iterator takes of any type, and the dtype that they are of."""
        if isinstance(one, Array):
            array = one.array.get() if isinstance(one.array, PackedArray) else one.data
            return codes_of(array, one.dtype.code_numpy), one.dtype.numpy
        number = np.full((), one, self._compute.numpy)
        return codes_of(number, self._compute.code_numpy), self._compute.numpy
