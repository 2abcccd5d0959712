# SPDX-License-Identifier: Apache-2.0
"""Public calls that launch kernels of every family, on arrays at chosen addresses, and as the host makes them.

A call takes a side and gives the arrays that it makes. `Host` is the side of what is right; `Device` has its sources and
its targets so many bytes behind an aligned address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import gpucast
from codes import values
from gpucast import PackedArray, mixed
from gpucast.arrays.bitpacking import pack_codes
from gpucast.quantization import Grouped, Quantized, cast_grouped, quantize_grouped, swizzle
from host_driver import device_array, upload

RANDOM: dict[str, Any] = {"rounding": "stochastic", "seed": 2**63 + 5, "offset": 2**34 + 3}
SIGNED: dict[str, Any] = {"hadamard": 16, "seed": 0x35A7}
#: The numbers of bytes by which addresses are odd.
ODD = (0, 1, 2, 4, 8)


class Host:
    """Arrays of NumPy."""

    def put(self, x: Any) -> Any:
        return x.copy()

    def target(self, x: np.ndarray[Any, Any]) -> Any:
        """Memory for a result like x."""
        return np.zeros_like(x)

    def pack(self, x: np.ndarray[Any, Any]) -> Any:
        """Types below one byte as a PackedArray."""
        kind = gpucast.dtype(x.dtype)
        return PackedArray(pack_codes(x.view(np.uint8).reshape(-1), kind.bits), kind, x.shape)

    def held(self, found: Any) -> Any:
        """Memory for a result of several parts, like one of the host."""
        return _replaced(found, lambda part: PackedArray(part.data.copy(), part.dtype, part.shape)
                         if isinstance(part, PackedArray) else np.zeros_like(part))  # fmt: skip

    def taken(self, found: Any) -> Any:
        """A result of several parts as an argument."""
        return found


class Device(Host):
    """Arrays on a device, sources `src` and targets `dst` bytes behind aligned addresses, as far as types allow it."""

    def __init__(self, src: int, dst: int) -> None:
        self.src, self.dst = src, dst

    def put(self, x: Any) -> Any:
        return upload(x, offset=_fit(self.src, x.itemsize))

    def target(self, x: np.ndarray[Any, Any]) -> Any:
        kind = gpucast.dtype(x.dtype)
        if kind.packed:
            return PackedArray(self._blank((kind.nbytes(x.size),), np.dtype(np.uint8)), kind, x.shape)
        return self._blank(x.shape, x.dtype)

    def pack(self, x: np.ndarray[Any, Any]) -> Any:
        packed = super().pack(x)
        return PackedArray(self.put(packed.data), packed.dtype, x.shape)

    def held(self, found: Any) -> Any:
        return _replaced(found, self._like)

    def taken(self, found: Any) -> Any:
        return _replaced(found, lambda part: PackedArray(self.put(part.data), part.dtype, part.shape)
                         if isinstance(part, PackedArray) else self.put(part))  # fmt: skip

    def _like(self, part: Any) -> Any:
        if isinstance(part, PackedArray):
            return PackedArray(self._blank(part.data.shape, part.data.dtype), part.dtype, part.shape)
        return self.target(part)

    def _blank(self, shape: tuple[int, ...], kind: Any) -> Any:
        plain = device_array(shape, f"u{kind.itemsize}", offset=_fit(self.dst, kind.itemsize))
        return plain.view(kind)


def _fit(offset: int, itemsize: int) -> int:
    """The least offset from the given one on that a type allows."""
    return -(-offset // itemsize) * itemsize


def _replaced(found: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(found, tuple) and not isinstance(found, Grouped):
        return tuple(_replaced(one, change) for one in found)
    if isinstance(found, Grouped):
        return Grouped(*(None if part is None else change(part) for part in found))
    return replace(found, **{name: change(part) for name, part in found.parts().items()})


class Call(NamedTuple):
    """A call by its family and its name."""

    family: str
    name: str
    run: Callable[[Any], list[Any]]

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"


# ---- casts ----

PAIRS = (
    "FLOAT:FLOAT8E4M3FN FLOAT8E5M2:FLOAT FLOAT:FLOAT4E2M1 DOUBLE:INT8 UINT8:DOUBLE BFLOAT16:FLOAT6E2M3 FLOAT16:BOOL "
    "INT64:FLOAT8E8M0 FLOAT8E4M3FNUZ:BFLOAT16 BOOL:INT16 INT16:INT2 FLOAT:FLOAT"
).split()
#: From types below one byte, which are packed or have bytes of their own.
NARROW = "INT4:FLOAT16 FLOAT6E3M2:BFLOAT16 INT2:INT64 FLOAT4E2M1:FLOAT8E8M0 UINT4:FLOAT8E5M2".split()
TURNED = "FLOAT:FLOAT16 FLOAT:INT8 BFLOAT16:DOUBLE FLOAT8E4M3FN:FLOAT UINT8:INT8".split()


def _values(kind: str, shape: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random codes, most of which are ordinary numbers."""
    if kind in ("FLOAT", "DOUBLE", "BFLOAT16", "FLOAT16") and seed % 2 == 0:
        rng = np.random.default_rng(seed)
        with np.errstate(over="ignore"):
            found = rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 10, shape)
        found.reshape(-1)[::41] = np.nan
        return np.asarray(gpucast.cast(found, kind))
    return values(kind, shape, seed)


def _cast(pair: str, size: Any, packed: bool = False, **keywords: Any) -> Callable[[Any], list[Any]]:
    src, dst = pair.split(":")
    x = _values(src, size)
    wanted = np.empty(x.shape, gpucast.dtype(dst).numpy)

    def run(side: Any) -> list[Any]:
        given = side.pack(x) if packed else side.put(x)
        found = gpucast.cast(given, dst, **keywords)
        return [found, gpucast.cast(given, dst, out=side.target(wanted), **keywords)]

    return run


def _strided(pair: str, view: Callable[[Any], Any], shape: tuple[int, ...], **keywords: Any) -> Any:
    src, dst = pair.split(":")
    x = _values(src, shape)
    wanted = np.empty(view(x).shape, gpucast.dtype(dst).numpy)
    return lambda side: [gpucast.cast(view(side.put(x)), dst, out=side.target(wanted), **keywords)]


def _casts(exhaustive: bool) -> Iterator[Call]:
    for pair in PAIRS:
        yield Call("cast", f"{pair} contiguous", _cast(pair, 333))
    for pair in NARROW:
        yield Call("cast", f"{pair} packed", _cast(pair, 333, packed=True))
        yield Call("cast", f"{pair} unpacked", _cast(pair, 333))
    for pair in (*PAIRS, *NARROW)[:: 1 if exhaustive else 4]:
        yield Call("cast", f"{pair} strided", _strided(pair, lambda x: x[::-1, ::2], (5, 42)))
    for pair in TURNED:
        yield Call("cast", f"{pair} transposed", _strided(pair, lambda x: x.T, (37, 70)))
    if exhaustive:
        kinds = [kind.name for kind in gpucast.DTYPES if kind.family != "string"]
        for number, src in enumerate(kinds):
            for dst in kinds[number % 3 :: 3]:
                yield Call("cast", f"{src}:{dst} contiguous", _cast(f"{src}:{dst}", 71))


# ---- more in the same pass ----


def _fused(pair: str, shape: Any = (7, 33), view: Any = None, amax: bool = False, scale: Any = None, **keywords: Any) -> Any:
    src, dst = pair.split(":")
    x = _values(src, shape)
    if amax:
        x[np.isnan(x.astype(np.float64))] = 1
    look = view or (lambda x: x)
    wanted = np.empty(look(x).shape, gpucast.dtype(dst).numpy)

    def run(side: Any) -> list[Any]:
        more = dict(keywords)
        if scale is not None:
            more["scale"] = side.put(scale) if isinstance(scale, np.ndarray) else scale
        if amax:
            more["amax"] = side.put(np.float32([0.5]).reshape(()))
        found = [gpucast.cast(look(side.put(x)), dst, out=side.target(wanted), **more)]
        return found + ([more["amax"]] if amax else [])

    return run


def _many(kinds: str, dst: str, finite: bool = False, **keywords: Any) -> Any:
    xs = [_values(src, 5 + 41 * number) for number, src in enumerate(kinds.split())]
    wanted = [np.empty(x.shape, gpucast.dtype(dst).numpy) for x in xs]

    def run(side: Any) -> list[Any]:
        more = {name: side.put(one) if isinstance(one, np.ndarray) else one for name, one in keywords.items()}
        if finite:
            more["finite"] = side.put(np.ones((), bool))
        out = [side.target(one) for one in wanted]
        found = gpucast.cast_many([side.put(x) for x in xs], dst, out=out, **more)
        return [*found, *(more[name] for name in ("finite", "amax") if name in more)]

    return run


def _fuses(exhaustive: bool) -> Iterator[Call]:
    one, wide = np.float32(0.37).reshape(()), np.float64(1.5).reshape(())
    for name, run in {
        "a number": _fused("FLOAT:FLOAT8E4M3FN", scale=0.25),
        "an array": _fused("BFLOAT16:FLOAT16", scale=one),
        "DOUBLE": _fused("DOUBLE:INT8", scale=wide),
        "INT64": _fused("INT64:FLOAT", scale=wide),
        "amax": _fused("FLOAT:FLOAT8E5M2", amax=True),
        "amax of FLOAT16": _fused("FLOAT16:FLOAT", amax=True),
        "scale and amax": _fused("FLOAT:FLOAT8E4M3FN", amax=True, scale=one),
        "strided": _fused("FLOAT:BFLOAT16", view=lambda x: x[:, ::2], amax=True, scale=one),
        "stochastic": _fused("FLOAT:FLOAT8E4M3FN", **RANDOM),
        "stochastic FLOAT6E2M3": _fused("FLOAT:FLOAT6E2M3", scale=one, **RANDOM),
        "stochastic strided": _fused("DOUBLE:FLOAT4E2M1", view=lambda x: x.T, **RANDOM),
    }.items():
        yield Call("fused", name, run)
    same = "FLOAT FLOAT FLOAT", "BFLOAT16"
    for name, run in {
        "one type": _many(*same),
        "several types": _many("FLOAT INT4 FLOAT8E5M2 DOUBLE INT16", "FLOAT16"),
        "twelve": _many("FLOAT16 " * 12, "FLOAT"),
    }.items():
        yield Call("batch", name, run)
    for name, run in {
        "scale": _many(*same, scale=one),
        "finite": _many("FLOAT FLOAT", "FLOAT", finite=True, scale=one),
        "amax": _many("FLOAT16 FLOAT16", "FLOAT8E5M2", amax=np.zeros(2, np.float32)),
        "stochastic": _many(*same, **RANDOM),
    }.items():
        yield Call("batch_fused", name, run)


# ---- mixed precision ----


def _dynamic(side: Any) -> list[Any]:
    scaler = mixed.DynamicLossScale(8.0, period=2)
    grads = [side.put(_values("FLOAT16", 3 + 20 * number, 1)) for number in range(3)]
    grads.append(side.put(_values("BFLOAT16", (5, 5), 2)))
    found, flag = scaler.unscale(grads)
    loss = scaler.scale(side.put(np.float32(1.5).reshape(1)))
    kept = scaler.adjust(flag)
    scaler = kept if kept is not None else scaler
    return [*found, flag, loss, scaler.loss_scale]


def _select(side: Any) -> list[Any]:
    flag = side.put(np.zeros((), bool))
    new, old = ([side.put(_values(kind, 77, seed)) for kind in ("FLOAT", "FLOAT16", "INT8", "DOUBLE")] for seed in (1, 3))
    out = [side.target(_values(kind, 77)) for kind in ("FLOAT", "FLOAT16", "INT8", "DOUBLE")]
    return list(mixed.select_tree(flag, new, old, out=out))


def _delayed(side: Any) -> list[Any]:
    scaler = mixed.DelayedScaling("FLOAT8E4M3FN", tensors=2, history=3, margin=1)
    arrays = [side.put(np.float32(np.random.default_rng(number).standard_normal(50))) for number in range(2)]
    scaler.cast_many(arrays)
    scaler.update()
    found = scaler.cast(arrays[0], 0)
    return [found, scaler.scale, scaler.inverse]


def _ufunc(text: str, kinds: str, out: str, **keywords: Any) -> Any:
    function = gpucast.ufunc(text, out, **keywords)
    xs = [_values(kind, 211, number) for number, kind in enumerate(kinds.split())]
    wanted = np.empty(211, gpucast.dtype(out).numpy)
    return lambda side: [function(*map(side.put, xs)), function(*map(side.put, xs), out=side.target(wanted))]


def _mixed(exhaustive: bool) -> Iterator[Call]:
    yield Call("adjust", "dynamic loss scale", _dynamic)
    yield Call("select", "select_tree", _select)
    yield Call("rescale", "delayed scaling", _delayed)
    yield Call("ufunc", "three inputs", _ufunc("a * b + c", "FLOAT FLOAT16 FLOAT8E4M3FN", "FLOAT8E4M3FN"))
    yield Call("ufunc", "DOUBLE", _ufunc("where(a > 0, sqrt(abs(a)), -b) / 3", "BFLOAT16 INT64", "FLOAT16", compute="DOUBLE"))
    yield Call("ufunc", "packed", _ufunc("a - b", "FLOAT FLOAT", "INT4", rounding="nearest_even"))


# ---- quantization ----


def numbers(shape: tuple[int, ...], source: str = "FLOAT") -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(shape[-1])
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, (*shape[:-1], 1))
    return np.asarray(gpucast.cast(x, source))


def _parts(found: Any) -> list[Any]:
    if isinstance(found, Grouped):
        return [part for part in found if part is not None]
    return [part for q in (found if isinstance(found, tuple) else (found,)) for part in q.parts().values()]


def _quantize(format: str, shape: tuple[int, ...] = (6, 128), source: str = "FLOAT", **keywords: Any) -> Any:
    x = numbers(shape, source)

    def run(side: Any) -> list[Any]:
        more = {name: side.put(one) if isinstance(one, np.ndarray) else one for name, one in keywords.items()}
        out = side.held(gpucast.quantize(x, format, **keywords))
        return _parts(gpucast.quantize(side.put(x), format, out=out, **more))

    return run


def _dequantize(format: str, to: str = "FLOAT", shape: tuple[int, ...] = (6, 128), **keywords: Any) -> Any:
    more = {name: one for name, one in keywords.items() if name in ("hadamard", "seed")}
    q = gpucast.quantize(numbers(shape), format, **keywords)
    wanted = np.empty(shape, gpucast.dtype(to).numpy)
    return lambda side: [gpucast.dequantize(side.taken(q), to, out=side.target(wanted), **more)]


def _quantizes(exhaustive: bool) -> Iterator[Call]:
    f32 = np.float32(0.02).reshape(())
    both: dict[str, Any] = {"transpose": "both"}
    table: dict[str, Any] = {
        "mxfp8e4m3": [{}, {"axis": 0}, both, {"transpose": True}, {"scale_layout": "128x4"}, RANDOM,
                      {"source": "BFLOAT16", **both, "shape": (64, 128)}, {"shape": (3, 65)}, {"source": "DOUBLE"}],
        "mxfp4": [{"source": "FLOAT16"}, {"axis": 0}, {**both, **RANDOM}],
        "mxfp6e3m2": [{}, {"shape": (4, 96), **both}],
        "nvfp4": [{}, both, {"amax": np.float32(3).reshape(())}, {"scale": f32}, {"scale_layout": "128x4"},
                  {"scale": np.float32([0.02, 0.3, 0.1, 1, 2, 3])}, {**RANDOM, "transpose": True, "shape": (64, 64)}],
        "nvfp4_16x16": [{"shape": (32, 64)}],
        "int8_axis": [{}, {"axis": 0}, {"shape": (8, 5)}, {"axis": 0, "scale": np.float32(2).reshape(())}],
        "int8_64": [{"source": "BFLOAT16"}, {"scale": np.float32(2).reshape(())}, {"axis": 0, "shape": (70, 20)}],
        "int4_zp_128": [{"shape": (3, 256)}, both],
        "uint2_zp_32": [{}],
        "float8e4m3fn_tensor": [{}, {"transpose": True}, {"scale": f32}],
        "float8e4m3fn_1x128": [{}, {"shape": (3, 200)}],
        "float8e4m3fn_128x128": [both],
        "int8_zp_axis": [{}],
        "deepgemm-ue8m0": [{}],
        "torchao-mxfp8-rceil": [{"source": "BFLOAT16"}],
        "te-float8-current": [{}],
        "te-nvfp4": [{}],
        "torchao-int4-32": [{"source": "BFLOAT16"}],
        "flashinfer-nvfp4": [{"source": "BFLOAT16"}],
        "compressed-tensors-int8-row": [{"source": "BFLOAT16"}],
    }  # fmt: skip
    if exhaustive:
        table |= {name: [{"shape": (16, 144)}, {"axis": 0}] for name in gpucast.quantization.FORMATS if name not in table}
    for format, hows in table.items():
        for number, how in enumerate(hows):
            words = " ".join(f"{key}={'array' if isinstance(one, np.ndarray) else one}" for key, one in how.items() if how is not RANDOM)
            yield Call("quantize", f"{format} {words if how is not RANDOM else 'stochastic'}".strip() + f" #{number}", _quantize(format, **how))
    for format in ("mxfp8e4m3", "nvfp4", "int8_axis", "int4_zp_32", "float8e4m3fn_1x128", "mxfp6e2m3", "int8_tensor", "int2_32"):
        yield Call("dequantize", format, _dequantize(format))
    yield Call("dequantize", "BFLOAT16", _dequantize("mxfp4", "BFLOAT16"))
    yield Call("dequantize", "FLOAT16 of odd rows", _dequantize("int8_64", "FLOAT16", (3, 65)))
    yield Call("dequantize", "128x4", _dequantize("mxfp8e4m3", "FLOAT", scale_layout="128x4"))
    yield Call("dequantize", "rows", _dequantize("nvfp4", scale=np.float32([0.02, 0.3, 0.1, 1, 2, 3])))
    scales = values("FLOAT8E8M0", (130, 5))
    whole = swizzle.swizzle(scales)
    yield Call("swizzle", "128x4", lambda side: [swizzle.swizzle(side.put(scales), out=side.target(whole))])
    yield Call("swizzle", "back", lambda side: [swizzle.unswizzle(side.put(whole), (130, 5), out=side.target(scales))])


def _hadamard(length: int, shape: tuple[int, ...], source: str, to: str = "FLOAT", **keywords: Any) -> Any:
    x, wanted = numbers(shape, source), np.empty(shape, gpucast.dtype(to).numpy)
    return lambda side: [gpucast.hadamard(side.put(x), length, to=to, out=side.target(wanted), seed=7, **keywords)]


def _hadamards(exhaustive: bool) -> Iterator[Call]:
    both: dict[str, Any] = {"transpose": "both"}
    square = {"shape": (64, 128)}
    yield Call("hadamard", "16", _hadamard(16, (3, 32), "BFLOAT16"))
    yield Call("hadamard", "32 FLOAT", _hadamard(32, (4, 64), "FLOAT"))
    yield Call("hadamard", "128", _hadamard(128, (2, 128), "FLOAT16"))
    yield Call("hadamard", "columns", _hadamard(32, (32, 9), "FLOAT", axis=0))
    yield Call("hadamard", "inverse", _hadamard(64, (3, 64), "FLOAT", "BFLOAT16", inverse=True))
    yield Call("hadamard", "inverse columns", _hadamard(16, (32, 8), "FLOAT", "FLOAT16", inverse=True, axis=0))
    for name, run in {
        "rows": _quantize("nvfp4", source="BFLOAT16", **SIGNED),
        "rows of mxfp8": _quantize("mxfp8e4m3", hadamard=32),
        "rows with a scale": _quantize("nvfp4", scale=np.float32(0.02).reshape(()), **SIGNED),
        "rows 128x4": _quantize("mxfp4", scale_layout="128x4", **SIGNED),
        "stochastic": _quantize("nvfp4", hadamard=16, **RANDOM),
        "transposed": _quantize("nvfp4", transpose=True, **SIGNED, **square),
        "both": _quantize("nvfp4", source="BFLOAT16", **both, **SIGNED, **square),
        "of the transposed": _quantize("nvfp4", **both, hadamard=(None, 16), **square),
        "mxfp8 both": _quantize("mxfp8e4m3", hadamard=16, **both, **square),
        "of a tensor": _quantize("int8_tensor", hadamard=64),
    }.items():
        yield Call("quantize with hadamard", name, run)
    yield Call("dequantize", "hadamard", _dequantize("nvfp4", **SIGNED))
    for name, run in {
        "rows": _quantize("nvfp4_4over6", source="BFLOAT16"),
        "rows with a scale": _quantize("nvfp4_4over6", scale=np.float32(0.02).reshape(())),
        "rows of scales": _quantize("nvfp4_4over6", scale=np.float32([0.02, 0.3, 0.1, 1, 2, 3])),
        "transposed": _quantize("nvfp4_4over6", transpose=True, **square),
        "both": _quantize("nvfp4_4over6", **both, **square),
        "hadamard": _quantize("nvfp4_4over6", **SIGNED),
        "128x4": _quantize("nvfp4_4over6", scale_layout="128x4"),
    }.items():
        yield Call("4over6", name, run)


# ---- groups ----


def _grouped(function: Any, to: str, source: str, kind: Any = np.int32, **keywords: Any) -> Any:
    x, offsets = numbers((5, 128), source), np.array([2, 2, 5], kind)

    def run(side: Any) -> list[Any]:
        more = {name: side.put(one) if isinstance(one, np.ndarray) else one for name, one in keywords.items()}
        found = function(side.put(x), side.put(offsets), to, **more)
        return _parts(found)

    return run


def _groups(exhaustive: bool) -> Iterator[Call]:
    scales = np.float32([0.02, 0.3, 0.004])
    for name, run in {
        "mxfp8": _grouped(quantize_grouped, "mxfp8e4m3", "BFLOAT16", pad=2),
        "mxfp8 128x4": _grouped(quantize_grouped, "mxfp8e4m3", "FLOAT", pad=128, scale_layout="128x4"),
        "nvfp4": _grouped(quantize_grouped, "nvfp4", "BFLOAT16", scale=scales, pad=2, **RANDOM),
        "float8 1x128": _grouped(quantize_grouped, "float8e4m3fn_1x128", "FLOAT", np.int64, pad=4),
        "casts": _grouped(cast_grouped, "FLOAT8E4M3FN", "BFLOAT16", scale=scales),
        "casts at random": _grouped(cast_grouped, "FLOAT8E5M2", "FLOAT", scale=scales, pad=4, **RANDOM),
    }.items():
        yield Call("grouped", name, run)


def calls(exhaustive: bool) -> list[Call]:
    """Those of every family; few of each unless `exhaustive`."""
    families = (_casts, _fuses, _mixed, _quantizes, _hadamards, _groups)
    return [call for family in families for call in family(exhaustive)]
