# SPDX-License-Identifier: Apache-2.0
"""Kernels of every family as values: keys, tasks of other processes, text; and the structs of their arguments."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import FUSED, FusedOps, cast_kernel
from gpucast.kernel.kernel import Kernel, parts_text
from gpucast.kernel.strides import DIMS
from gpucast.parity import host_build
from gpucast.user_kernels.expression import parse
from gpucast.user_kernels.ufunc_kernel import UfuncInput, ufunc_kernel
from gpucast.warmup.compile_ahead import tasks
from gpucast.warmup.request import WarmupRequest

REQUEST = WarmupRequest(
    [("FLOAT", "FLOAT16"), ("INT4", "FLOAT")],
    transposed=True,
    fused=True,
    many=True,
    mixed=True,
    grouped=True,
    hadamard=16,
    quantize=("mxfp8e4m3", "nvfp4", "float8e4m3fn_1x128", "int8_32"),
)
RULE = resolve(dtype("FLOAT"), dtype("FLOAT16"))


def kernels() -> list[Kernel]:
    number, arrays = UfuncInput(dtype("FLOAT"), 32, "number"), UfuncInput(dtype("INT8"), 8, "strided")
    of_three = ufunc_kernel(parse("a * b + c", ""), RULE, FusedOps(), (number, arrays, arrays), "dense")
    return [*(task.kernel for task in tasks(REQUEST, "sm_90")), of_three]


def test_every_kernel_is_a_value() -> None:
    for kernel in kernels():
        copy = pickle.loads(pickle.dumps(kernel))
        assert copy == kernel and hash(copy) == hash(kernel) and copy is not kernel
        assert (copy.name, copy.text) == (kernel.name, kernel.text)
        assert copy.arguments.layout.format == kernel.arguments.layout.format
        with pytest.raises(dataclasses.FrozenInstanceError):
            kernel.name = ""  # type: ignore[misc]
    one = cast_kernel(RULE)
    assert one != dataclasses.replace(one, line="") and one != dataclasses.replace(one, name="") and one != one.name


@functools.cache
def structs() -> dict[str, tuple[Kernel, Fields]]:
    """The struct that each kind of kernel is given, and one of its kernels."""
    given = {}
    for kernel in kernels():
        fields = kernel.arguments.places[-1].type
        if isinstance(fields, Fields):
            given[fields.name] = (kernel, fields)
    return given


NAMES = (
    "Adjustment", "Arrays", "Choices", "Dims", "FusedArguments", "FusedArrays", "FusedDims", "GroupedArguments",
    "HadamardArguments", "QuantizeArguments", "Rescaling", "TileArguments", "UfuncArguments",
)  # fmt: skip


def test_every_struct_is_tried() -> None:
    assert sorted(structs()) == sorted(NAMES)


def places(fields: Fields, first: int = 0, of: str = "") -> Iterator[tuple[str, int, int]]:
    """The fields within, as C++ names them from a struct, with their offsets and sizes."""
    for name, kind, length, offset in fields.places:
        size = kind.nbytes if isinstance(kind, Fields) else np.dtype(fields.dtype[name].base).itemsize
        yield f"{of}{name}", first + offset, size * (1 if length is None else length)
        if isinstance(kind, Fields) and length is None:
            yield from places(kind, first + offset, f"{of}{name}.")


@pytest.mark.parametrize("name", NAMES)
def test_structs_are_those_of_cpp(name: str) -> None:
    kernel, fields = structs()[name]
    # No file has a struct of its own.
    assert kernel.text.count(f"struct {fields.name} {{") == 1
    checks = [
        f"static_assert(__builtin_offsetof(gpucast::{fields.type}, {path}) == {offset} && "
        f'sizeof((({named}*)nullptr)->{path}) == {size}, "{path}");\n'
        for named in [f"gpucast::{fields.type}"]
        for path, offset, size in places(fields)
    ]
    assert len(checks) >= len(fields.rows)
    host_build.build([dataclasses.replace(kernel, line=kernel.line + "".join(checks))], optimize=False)


def test_a_struct_that_differs_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    text = FUSED.text
    monkeypatch.setitem(vars(FUSED), "text", text.replace("i64 first;", "i64 first, second;"))
    assert FUSED.text != text
    parts_text.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="FusedArguments in Python and in C"):
            host_build.build([structs()["FusedArguments"][0]], optimize=False)
    finally:
        parts_text.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_values_are_packed_where_numpy_reads_them(name: str) -> None:
    fields = structs()[name][1]
    draw = random.Random(name)
    zeros = [zero for place in fields.places for zero in place.zeros]
    data = fields.pack(*(draw.randrange(2**7) for _ in zeros))
    assert len(data) == fields.nbytes == fields.dtype.itemsize
    record = np.frombuffer(data, fields.dtype)[0]
    values = list(flat(record))
    draw.seed(name)
    assert values == [draw.randrange(2**7) for _ in zeros]


def flat(record: Any) -> Iterator[float]:
    if isinstance(record, np.void):
        for name in record.dtype.names or ():
            yield from flat(record[name])
    elif isinstance(record, np.ndarray):
        for one in record:
            yield from flat(one)
    else:
        yield record


def test_values_by_name() -> None:
    assert FUSED.fill(scale=0.5, random=(7, 9), first=-1) == struct.pack("<d3Q2Qq", 0.5, 0, 0, 0, 7, 9, -1)
    two = DIMS.of(2)
    assert two.fill(count=1, length=(5, 6)) == struct.pack("<I4x2Q2Q4q", 1, 5, 6, 0, 0, *[0] * 4)
    assert (two.type, DIMS.type, FUSED.type) == ("Dims<2>", "Dims<MaxDims>", "FusedArguments")
    with pytest.raises(TypeError, match=r"^FusedArguments: no field is named seed; expected one of scale, scale_at, "):
        FUSED.fill(seed=1)
    with pytest.raises(AssertionError, match="Dims has no value of MaxDims"):
        DIMS.fill()
