# SPDX-License-Identifier: Apache-2.0
"""The calls whose speed is estimated, and what each launches: by making them on arrays without contents."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import gpucast
from gpucast import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.kernel.fields import Fields
from gpucast.kernel.kernel import Kernel
from gpucast.quantization import Quantized
from gpucast.quantization.grouped import Grouped
from gpucast.warmup.dry_run import Recorder, dry_run

#: The elements of a call: a matrix of so many rows and columns.
ROWS = COLUMNS = 8192
ELEMENTS = ROWS * COLUMNS
#: The groups of rows, such as the tokens of experts.
_GROUPS = 8
#: The arrays of a tree.
_TREE = 64
#: Arrays of fewer bytes than this share of the largest one are no data: scales, statistics, offsets.
_DATA = 1 / 4
#: What the line of a kernel gives to its function: some use neither source nor result.
_CALLED = re.compile(r">\(((?:src|dst|n|given)(?:, (?:src|dst|n|given))*)\)")


class Launched(NamedTuple):
    """A launch that was asked for."""

    kernel: Kernel
    blocks: int
    #: The bytes of `Kernel.arguments`.
    arguments: bytes


class Tracer(Recorder):
    """A recorder that notes every launch and the memory of every array, too."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[Launched] = []
        #: The bytes of an array, and those of an element, by its address.
        self.memory: dict[int, tuple[int, int]] = {}

    def resident(self, kernel: Kernel) -> int:
        # As many blocks as there is work for; `bench.static.kernels.measured` knows how many a GPU holds.
        return 1 << 31

    def load(self, kernel: Kernel) -> Any:
        super().load(kernel)
        return lambda blocks, arguments: self.launched.append(Launched(kernel, blocks, bytes(arguments)))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Any:
        array = super().empty(shape, dtype, strides)
        self.memory[array.data.ptr] = array.nbytes, dtype.itemsize
        return array


#: Makes a call; returns the arrays that it must read, and those that it must write.
Run = Callable[[Tracer], tuple[Any, Any]]


@dataclass(frozen=True)
class Family:
    """A kind of call that users make."""

    name: str
    run: Run
    #: Rounds of loads that the threads of a block wait for in others of their block, before their own.
    rounds: int = 0
    elements: int = ELEMENTS
    #: Whether launches after the first go through the array from its end, part of which a cache still has.
    reverse: bool = False


@dataclass(frozen=True)
class Pass:
    """One launch of a call."""

    kernel: Kernel
    blocks: int
    #: Bytes that it reads and writes, with those that strides skip.
    read: int
    written: int
    #: Bytes of data, without those that strides skip, and of what is written beside data, for each thread.
    load: float
    store: float
    beside: float
    #: Of what it reads, the bytes of the largest array that an earlier launch read or wrote.
    again: int
    #: As of `Family`.
    rounds: int
    reverse: bool

    @property
    def threads(self) -> int:
        """Of all blocks."""
        return self.blocks * self.kernel.threads


@dataclass(frozen=True)
class Call:
    """What a call launches."""

    name: str
    passes: tuple[Pass, ...]
    #: The bytes that it must read and write once.
    needed: int
    elements: int

    @property
    def read(self) -> int:
        return sum(one.read for one in self.passes)

    @property
    def written(self) -> int:
        return sum(one.written for one in self.passes)


def recorded(family: Family) -> Call:
    """What a family launches."""
    with dry_run(Tracer) as recorder:
        inputs, results = family.run(recorder)
    # What a launch points to is read if there was something before.
    known = {_home(recorder, address) for address in _addresses(inputs)}
    seen, passes = set[int](), list[Pass]()
    for one in recorder.launched:
        homes = _homes(recorder, one)
        passes.append(_pass(recorder, family, one, homes & known, homes - known, homes & seen))
        known |= homes
        seen |= homes
    needed = sum(_nbytes(x) for some in (inputs, results) for x in _arrays(some))
    return Call(family.name, tuple(passes), needed, family.elements)


def _pass(recorder: Tracer, family: Family, one: Launched, reads: set[int], writes: set[int], seen: set[int]) -> Pass:
    # Of a tile, where a thread has one: that of a group of rows may be filled in part.
    threads = min(one.blocks * one.kernel.threads, family.elements / one.kernel.elements)
    (load, _), (store, beside) = (_of_data(recorder, homes, family.elements) for homes in (reads, writes))
    of_read, of_written = (sum(recorder.memory[home][0] for home in some) for some in (reads, writes))
    again = max((recorder.memory[home][0] for home in seen & reads), default=0)
    sides = load / threads, store / threads, math.ceil(beside / threads)
    return Pass(one.kernel, one.blocks, of_read, of_written, *sides, again, family.rounds, family.reverse)


def _of_data(recorder: Tracer, homes: set[int], elements: int) -> tuple[float, float]:
    """The bytes of data among arrays, and the others."""
    sizes = [recorder.memory[home] for home in homes]
    most = max((nbytes for nbytes, _ in sizes), default=0)
    data = [(nbytes, itemsize) for nbytes, itemsize in sizes if nbytes >= _DATA * most]
    # Of an array of which every second element is taken half the bytes are data.
    moved = sum(min(nbytes, elements * itemsize) for nbytes, itemsize in data)
    return moved, sum(nbytes for nbytes, _ in sizes) - sum(nbytes for nbytes, _ in data)


def _homes(recorder: Tracer, one: Launched) -> set[int]:
    """The addresses of the arrays that a launch uses."""
    record = np.frombuffer(one.arguments, one.kernel.arguments.dtype)[0]
    used = _CALLED.search(one.kernel.line)
    unused = {"src", "dst"} - set(used[1].split(", ")) if used else set[str]()
    return {_home(recorder, address) for address in pointers(one.kernel.arguments, record, unused) if address}


def pointers(fields: Fields, record: Any, unused: Collection[str] = ()) -> Iterator[int]:
    """The addresses in the arguments of a kernel, but for those of some names."""
    for place in fields.places:
        if place.name in unused:
            continue
        value = record[place.name]
        if isinstance(place.type, Fields):
            yield from pointers(place.type, value)
        elif place.type.endswith("*"):
            yield from map(int, np.atleast_1d(value))


def _home(recorder: Tracer, address: int) -> int:
    """The address of the array that an address lies in."""
    return max(home for home in recorder.memory if home <= address)


def _arrays(found: Any) -> Iterator[Any]:
    """The arrays in arguments or results, however they are nested."""
    if isinstance(found, Quantized):
        found = list(found.parts().values())
    if isinstance(found, PackedArray):
        yield found.data
    elif isinstance(found, (list, tuple, Grouped)):
        for one in found:
            yield from _arrays(one)
    elif found is not None:
        yield found


def _addresses(found: Any) -> Iterator[int]:
    return (int(x.data.ptr) for x in _arrays(found))


def _nbytes(x: Any) -> int:
    return int(x.size * x.itemsize)


# ---- the families ----


def _cast(recorder: Recorder, src: str, dst: str, layout: str = "", **keywords: Any) -> tuple[Any, Any]:
    x, out = recorder.array((ROWS, COLUMNS), src, dtype(src).packed), None
    if layout == "transposed":
        x, out = x.T, recorder.array((ROWS, COLUMNS), dst)
    elif layout == "every second element":
        x = recorder.array((ROWS, 2 * COLUMNS), src)[:, ::2]
    if "amax" in keywords:
        keywords["amax"] = recorder.array((1,), "FLOAT")
    return x, gpucast.cast(x, dst, out=out, **keywords)


def _tree(recorder: Recorder, src: str, dst: str) -> tuple[Any, Any]:
    arrays = [recorder.array((ROWS // _TREE, COLUMNS), src) for _ in range(_TREE)]
    return arrays, gpucast.cast_many(arrays, dst)


def _quantize(
    recorder: Recorder, src: str, format: str, amax: bool = False, rows: int = ROWS, **keywords: Any
) -> tuple[Any, Any]:
    x = recorder.array((rows, COLUMNS), src)
    given = {"amax": recorder.array((1,), "FLOAT")} if amax else {}
    return [x, *given.values()], gpucast.quantize(x, format, **given, **keywords)


def _dequantize(recorder: Tracer, format: str, dst: str) -> tuple[Any, Any]:
    q = gpucast.quantize(recorder.array((ROWS, COLUMNS), dst), format)
    recorder.launched.clear()
    return q, q.dequantize(dst)


def _grouped(recorder: Recorder, src: str, format: str) -> tuple[Any, Any]:
    x, ends = recorder.array((ROWS, COLUMNS), src), recorder.array((_GROUPS,), "INT32")
    return [x, ends], gpucast.quantize_grouped(x, ends, format)


def _hadamard(recorder: Recorder, src: str, length: int) -> tuple[Any, Any]:
    x = recorder.array((ROWS, COLUMNS), src)
    return x, gpucast.hadamard(x, length, to=src)


_BF16 = "BFLOAT16"
_CASTS = (
    ("FLOAT", "FLOAT16"), ("FLOAT", "BFLOAT16"), ("FLOAT", "FLOAT8E4M3FN"), ("FLOAT", "FLOAT6E2M3"),
    ("FLOAT", "FLOAT4E2M1"), ("FLOAT8E4M3FN", "FLOAT16"), ("FLOAT8E4M3FN", "FLOAT"), ("DOUBLE", "FLOAT"),
    ("INT8", "FLOAT"), ("INT4", "FLOAT16"),
)  # fmt: skip
_LAYOUTS = (("FLOAT", "FLOAT16"), ("FLOAT", "FLOAT8E4M3FN"), ("INT8", "UINT8"))


def cast_family(src: str, dst: str) -> Family:
    """Casts of contiguous arrays, packed where the type is."""
    return Family(f"{src} to {dst}", partial(_cast, src=src, dst=dst))


def families() -> Iterator[Family]:
    """Every family, by what is called."""
    yield from itertools.starmap(cast_family, _CASTS)
    for layout in ("transposed", "every second element"):
        for src, dst in _LAYOUTS:
            yield Family(f"{src} to {dst}, {layout}", partial(_cast, src=src, dst=dst, layout=layout))
    yield Family(f"FLOAT to BFLOAT16, {_TREE} arrays", partial(_tree, src="FLOAT", dst=_BF16))
    fused: dict[str, dict[str, Any]] = {
        "scale= and amax=": {"scale": 0.5, "amax": None},
        "random": {"rounding": "stochastic", "seed": 0},
    }
    for name, keywords in fused.items():
        yield Family(f"FLOAT to FLOAT8E4M3FN, {name}", partial(_cast, src="FLOAT", dst="FLOAT8E4M3FN", **keywords))
    for src in ("FLOAT", _BF16):
        for format in ("mxfp8e4m3", "float8e4m3fn_1x128", "int4_128"):
            yield Family(f"{format} of {src}", partial(_quantize, src=src, format=format))
        yield Family(f"nvfp4 of {src}, amax=", partial(_quantize, src=src, format="nvfp4", amax=True))
    of = partial(partial, _quantize, src=_BF16)
    for name, run in {
        "mxfp8e4m3, 128x4": of(format="mxfp8e4m3", scale_layout="128x4"),
        "mxfp8e4m3, both ways": of(format="mxfp8e4m3", transpose="both"),
        "mxfp8e4m3, transposed": of(format="mxfp8e4m3", transpose=True),
        "float8e4m3fn_128x128, both ways": of(format="float8e4m3fn_128x128", transpose="both"),
        "nvfp4": of(format="nvfp4"),
        "nvfp4, both ways, amax=": of(format="nvfp4", transpose="both", amax=True),
        "nvfp4, Hadamard 16, amax=": of(format="nvfp4", hadamard=16, amax=True),
        "nvfp4, Hadamard 128, amax=": of(format="nvfp4", hadamard=128, amax=True),
        "nvfp4_4over6, amax=": of(format="nvfp4_4over6", amax=True),
        "float8e4m3fn_tensor": of(format="float8e4m3fn_tensor"),
        "int8_axis": of(format="int8_axis"),
    }.items():
        # Of two passes the second one begins at the end.
        yield Family(f"{name} of {_BF16}", run, reverse=name in ("nvfp4", "float8e4m3fn_tensor", "int8_axis"))
    both = partial(_quantize, src="FLOAT16", format="nvfp4", transpose="both", amax=True)
    yield Family("nvfp4, both ways, amax= of FLOAT16", both)
    few = 1 << 24
    of_few = of(format="nvfp4", rows=few // COLUMNS)
    yield Family(f"nvfp4 of {_BF16}, 2^24 elements", of_few, elements=few)
    # The ends of the groups are looked at twice before a block knows its rows.
    yield Family(f"mxfp8e4m3, groups of {_BF16}", partial(_grouped, src=_BF16, format="mxfp8e4m3"), rounds=2)
    for length in (16, 128):
        yield Family(f"Hadamard {length} of {_BF16}", partial(_hadamard, src=_BF16, length=length))
    for format in ("mxfp8e4m3", "nvfp4"):
        yield Family(f"{format} back to {_BF16}", partial(_dequantize, format=format, dst=_BF16))
