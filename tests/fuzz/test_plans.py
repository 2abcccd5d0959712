# SPDX-License-Identifier: Apache-2.0
"""Random sequences of calls, once with the plans that earlier calls of the sequence have left, once each with none: the
same bits, the same errors, and the same arrays written."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from gpucast import PackedArray, mixed
from gpucast.arrays.packed import LibraryPackedArray
from gpucast.casting import engines, list_plans, plans
from gpucast.core.extension import MODULE
from gpucast.quantization import FORMATS, cuda_plans
from host_driver import HostDriver, download, installed, rehearsed, upload

pytestmark = pytest.mark.skipif(MODULE is None, reason="without the extension module there are no plans")

#: Makes an array of a library of one of NumPy.
Library = Callable[[Any], Any]
_KINDS = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int8, ">f4", ml_dtypes.float8_e4m3fn]
_TO = ["FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "INT8", "FLOAT", "INT4"]
_SHAPES = [(96,), (6, 32), (2, 3, 32), (), (0,), (64, 48), (5, 130)]


def numbers(pick: random.Random, kind: Any, shape: tuple[int, ...]) -> Any:
    """An array of some layout, mostly of finite numbers."""
    rng = np.random.default_rng(pick.randrange(1 << 30))
    x = rng.standard_normal(shape) * 10.0 ** pick.choice([-9, -2, 0, 2, 9])
    if pick.random() < 0.2 and x.size:
        x.flat[pick.randrange(x.size)] = pick.choice([np.nan, np.inf, -np.inf, -0.0, 1e300])
    with np.errstate(all="ignore"):
        x = x.astype(kind)
    layout = pick.randrange(4)
    if layout == 1 and x.ndim > 1:
        return np.asarray(x.T, order="C").T
    if layout == 2 and x.ndim:
        return np.repeat(x, 2, axis=-1)[..., ::2]
    if layout == 3 and x.ndim:
        return x[::-1]
    return x


def casts(pick: random.Random, library: Library) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    if pick.random() < 0.3:
        keywords["scale"] = pick.choice([2.0, 0.1, 3, library(np.array(0.3)), library(np.array(1.5, np.float32)), -1.0])
    if pick.random() < 0.3:
        keywords["amax"] = library(np.array(pick.choice([0, 1e30]), np.float32))
    if pick.random() < 0.15:
        keywords |= {"rounding": "stochastic", "seed": pick.choice([1, 2**64 - 1]), "offset": pick.choice([0, 7])}
    if pick.random() < 0.1:
        keywords[pick.choice(["offset", "seed"])] = pick.choice([0, 1])
    if pick.random() < 0.1:
        keywords |= pick.choice([{"saturate": False}, {"overflow": "saturate"}, {"copy": False}, {"device": "cpu"}])
    return keywords


def sequence(seed: int, library: Library) -> Iterator[Callable[[], list[Any]]]:
    """The calls of a seed, of a few types, shapes and formats. Each gives its result, and all that it may write."""
    pick = random.Random(seed)
    kinds, shapes, formats = (
        pick.sample(_KINDS, 3),
        pick.sample(_SHAPES, 3),
        pick.sample(sorted(FORMATS), min(4, len(FORMATS))),
    )
    for _ in range(80):
        what = pick.choice(_WHAT)
        choice = pick.choice(kinds), pick.choice(shapes), pick.choice(formats), pick.randrange(1 << 30)
        yield partial(_call, what, *choice, library)


def _call(
    what: Callable[..., list[Any]], kind: Any, shape: tuple[int, ...], name: str, seed: int, library: Library
) -> list[Any]:
    pick = random.Random(seed)
    return what(library(numbers(pick, kind, shape)), name, kind, shape, pick, library)


def cast(x: Any, name: str, kind: Any, shape: tuple[int, ...], pick: random.Random, library: Library) -> list[Any]:
    keywords, to, out = casts(pick, library), pick.choice(_TO), None
    if pick.random() < 0.4:
        out = library(np.zeros(shape, gpucast.dtype(to).numpy))
        if pick.random() < 0.2:
            out = library(np.zeros((*shape, 2), gpucast.dtype(to).numpy))[..., 0]
        if pick.random() < 0.1 and "amax" in keywords:
            out = keywords["amax"]
    y = gpucast.cast(x, to, **keywords, out=out)
    return [y, out, keywords.get("amax"), y is out, y is x]


def many(x: Any, name: str, kind: Any, shape: tuple[int, ...], pick: random.Random, library: Library) -> list[Any]:
    keywords, to, outs = casts(pick, library), pick.choice(_TO), None
    keywords.pop("copy", None)
    keywords.pop("device", None)
    given = [x, library(numbers(pick, kind, pick.choice(_SHAPES))), library(numbers(pick, np.float16, (4, 5)))]
    if pick.random() < 0.5:
        outs = [library(np.zeros(tuple(one.shape), gpucast.dtype(to).numpy)) for one in given]
    if pick.random() < 0.3:
        keywords["finite"] = np.ones((), bool)
    y = gpucast.cast_many(given, to, **keywords, out=outs)
    return [*y, *(outs or []), keywords.get("amax"), keywords.get("finite"), y is outs]


def quantized(x: Any, name: str, kind: Any, shape: tuple[int, ...], pick: random.Random, library: Library) -> Any:
    keywords: dict[str, Any] = {"axis": pick.choice([-1, -1, -1, 0])}
    if pick.random() < 0.15:
        keywords["scale_layout"] = pick.choice(["128x4", "mn_major"])
    if pick.random() < 0.25:
        random_words = {"rounding": "stochastic", "seed": pick.choice([1, 2**64 - 1]), "offset": pick.choice([0, 9])}
        keywords |= pick.choice([{"scale": 2.0}, {"amax": 3.0}, random_words, random_words, {"offset": 1}, {"seed": 1}])
    q = gpucast.quantize(x, name, **keywords)
    if pick.random() < 0.5:
        like = gpucast.quantize(library(numbers(pick, kind, shape)), name, **keywords)
        assert gpucast.quantize(x, name, **keywords, out=like) is like
        q = like
    return q


def quantize(*call: Any) -> list[Any]:
    q = quantized(*call)
    return [*q.parts().values(), q.axis, q.format.name, q.dtype.name, q.library, q.scale_layout]


def dequantize(
    x: Any, name: str, kind: Any, shape: tuple[int, ...], pick: random.Random, library: Library
) -> list[Any]:
    q = quantized(x, name, kind, shape, pick, library)
    back = pick.choice(["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"])
    if pick.random() < 0.5:
        return [q.dequantize(back)]
    out = library(np.zeros(shape, gpucast.dtype(back).numpy))
    return [q.dequantize(back, out=out), out]


def ways(x: Any, name: str, kind: Any, shape: tuple[int, ...], pick: random.Random, library: Library) -> list[Any]:
    """Quantized along both ways, of transformed numbers too."""
    keywords: dict[str, Any] = {"transpose": pick.choice([True, "both", "both"])}
    if pick.random() < 0.5:
        pair = (None, 16) if keywords["transpose"] == "both" and pick.random() < 0.5 else 16
        keywords |= {"hadamard": pair, **_signs(pick)}
    if pick.random() < 0.25:
        keywords |= {"rounding": "stochastic", "seed": pick.choice([1, 2**64 - 1]), "offset": pick.choice([0, 9])}
    q = gpucast.quantize(x, name, **keywords)
    if pick.random() < 0.4:
        like = gpucast.quantize(library(numbers(pick, kind, shape)), name, **keywords)
        q = gpucast.quantize(x, name, **keywords, out=like)
        assert q is like
    both = q if isinstance(q, tuple) else (q,)
    return [part for one in both for part in (*one.parts().values(), one.axis, one.format.name, one.library)]


def _signs(pick: random.Random) -> dict[str, Any]:
    signs = [[1, -1] * 8, (1,) * 16, [1] * 15, [1.0, -1.0] * 8, None, None]
    return pick.choice([{}, {"seed": 5}, {"seed": 6}, {"signs": pick.choice(signs)}, {"signs": signs[0], "seed": 1}])


def transformed(
    x: Any, name: str, kind: Any, shape: tuple[int, ...], pick: random.Random, library: Library
) -> list[Any]:
    keywords = {**_signs(pick), **pick.choice([{}, {"axis": 0}, {"inverse": True}, {"to": "BFLOAT16"}])}
    out = None
    if pick.random() < 0.4:
        out = library(np.zeros(shape, gpucast.dtype(keywords.get("to", "FLOAT")).numpy))
    y = gpucast.hadamard(x, 16, **keywords, out=out)
    return [y, out, y is out]


def grouped(x: Any, name: str, kind: Any, shape: tuple[int, ...], pick: random.Random, library: Library) -> list[Any]:
    ends = pick.choice([[2, 5], [0, 6], [6, 6], [3, 99]])
    offsets = library(np.array(ends, pick.choice([np.int32, np.int32, np.int64])))
    keywords: dict[str, Any] = {"pad": pick.choice([1, 4])}
    if pick.random() < 0.3:
        keywords |= {"rounding": "stochastic", "seed": pick.choice([1, 2]), "offset": pick.choice([0, 2**64 - 1])}
    scale = pick.choice([2.0, 1, library(np.array([0.5, 3], np.float32)), library(np.array([2], np.float32))])
    if pick.random() < 0.5:
        call: Any = partial(gpucast.cast_grouped, x, offsets, "FLOAT8E4M3FN", scale=scale, **keywords)
    else:
        call = partial(gpucast.quantize_grouped, x, offsets, name, **keywords)
        call = partial(call, scale=scale) if name == "nvfp4" else call
    found = call()
    if pick.random() < 0.4:
        again = call(out=found)
        assert again is found
    return [part for part in found if part is not None]


def fake(x: Any, name: str, kind: Any, shape: tuple[int, ...], pick: random.Random, library: Library) -> list[Any]:
    keywords, to, out = casts(pick, library), pick.choice(["FLOAT8E4M3FN", "INT4", name]), None
    for other in ("copy", "device"):
        keywords.pop(other, None)
    if pick.random() < 0.4:
        out = library(np.zeros(shape, gpucast.dtype(kind).numpy))
    y = mixed.fake_cast(x, to, **keywords, out=out)
    return [y, out, keywords.get("amax"), y is out]


def packed(x: Any, name: str, kind: Any, shape: tuple[int, ...], pick: random.Random, library: Library) -> list[Any]:
    """Packed elements of the host, whatever the library is."""
    keywords, to, out = casts(pick, lambda one: one), pick.choice([*_TO, "UINT4", "FLOAT6E2M3"]), None
    given = gpucast.cast(numbers(pick, np.float32, shape), pick.choice(["INT4", "UINT2", "FLOAT4E2M1"]))
    p, kind = PackedArray.pack(np.asarray(given)), gpucast.dtype(to)
    if pick.random() < 0.5 and kind.packed:
        out = PackedArray(np.zeros(kind.nbytes(p.size), np.uint8), kind, pick.choice([shape, shape, (p.size,)]))
        if pick.random() < 0.2:
            out.data.flags.writeable = False
        if pick.random() < 0.2 and kind.bits == p.dtype.bits:
            out = PackedArray(p.data, kind, shape)
    elif pick.random() < 0.5:
        out = pick.choice([np.zeros(shape, kind.numpy), np.zeros((*shape, 2), kind.numpy)[..., 0]])
    y = gpucast.cast(p, to, **keywords, out=out)
    return [y, out, keywords.get("amax"), y is out, y is p]


#: The calls of a sequence.
_WHAT = [packed, cast, cast, many, quantize, quantize, dequantize, dequantize, ways, transformed, grouped, fake]


def shown(found: Any) -> Any:
    """All that a caller could see of a result."""
    if isinstance(found, PackedArray):
        return "packed", found.dtype.name, found.shape, shown(found.data)
    if type(found).__module__.startswith("cupy"):
        return type(found).__name__, found.strides, shown(download(found))
    if hasattr(found, "numpy") and hasattr(found, "requires_grad"):
        import torch

        codes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
        return (
            str(found.dtype),
            tuple(found.shape),
            found.stride(),
            found.detach().view(codes).contiguous().numpy().tobytes(),
        )
    if isinstance(found, np.ndarray):
        return str(found.dtype), found.shape, found.strides, found.tobytes()
    return found


def run(call: Callable[[], list[Any]]) -> Any:
    try:
        return [shown(one) for one in call()]
    except (TypeError, ValueError, OverflowError) as error:
        return type(error), str(error)


def compare(seed: int, library: Library) -> None:
    plans.forget()
    warm = [run(call) for call in sequence(seed, library)]
    assert plans.count() > 5
    for call, found in zip(sequence(seed, library), warm, strict=True):
        plans.forget()
        assert found == run(call), call


@pytest.mark.parametrize("seed", range(30))
def test_plans_change_nothing_for_arrays(seed: int) -> None:
    compare(seed, lambda x: x)


#: Formats whose kernels are not too many to compile, and calls.
_USUAL = [cast, cast, many, quantize, dequantize]
_ON_DEVICES = [
    (["mxfp8e4m3", "int4_128"], _USUAL),
    (["nvfp4", "mxfp4"], _USUAL),
    (["int8_axis", "float8e4m3fn_tensor"], _USUAL),
    (["nvfp4"], [ways]),
    (["mxfp8e4m3"], [transformed, fake]),
    (["mxfp8e4m3", "nvfp4"], [grouped]),
]
_DEVICE_SEEDS = range(len(_ON_DEVICES))


def compare_on_device(seed: int, library: Library, monkeypatch: pytest.MonkeyPatch, least: int = 3) -> None:
    """The kernels as host code. Their launches are Python's: programs are repeated, and casts go the checked path."""
    formats, what = _ON_DEVICES[seed]
    monkeypatch.setattr(sys.modules[__name__], "FORMATS", dict.fromkeys(formats))
    monkeypatch.setattr(sys.modules[__name__], "_WHAT", what)
    # Of the last ones there are more kernels.
    kinds = [np.float32, np.float16, ml_dtypes.bfloat16] if what is _USUAL else [np.float32] * 3
    monkeypatch.setattr(sys.modules[__name__], "_KINDS", kinds)
    if what is not _USUAL:
        monkeypatch.setattr(sys.modules[__name__], "_SHAPES", [(6, 32), (6, 32), (64, 48)])
    # They are built together, which is quicker than one by one.
    driver = rehearsed(partial(run, call) for call in sequence(seed, library))
    repeated: list[bool] = []
    own = cuda_plans._Known._launch

    def launched(self: Any, asked: Any, given: list[Any]) -> Any:
        result = own(self, asked, given)
        repeated.append(result is not None)
        return result

    monkeypatch.setattr(cuda_plans._Known, "_launch", launched)
    with installed(driver):
        compare(seed, library)
    assert sum(repeated) > least


@pytest.mark.parametrize("seed", _DEVICE_SEEDS)
def test_plans_change_nothing_on_devices(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_on_device(seed, lambda x: upload(np.array(x, order="C")), monkeypatch)


@pytest.fixture
def tensor_on_device(monkeypatch: pytest.MonkeyPatch) -> Library:
    """From an array of NumPy to a tensor; those of the host count as those of device 0."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from gpucast.libraries.torch import library, tensors

    monkeypatch.setattr(tensors, "device_of", lambda x, caller: 0)
    monkeypatch.setattr(tensors, "stream", lambda device: 0)
    monkeypatch.setattr(library, "MODULE", None)
    monkeypatch.delitem(list_plans.HOST_KINDS, torch.Tensor)
    from_array = tensors.from_array

    def there(x: Any) -> Any:
        # By DLPack it would be on the device.
        data = x.data if isinstance(x, PackedArray) else x
        if not isinstance(data, np.ndarray):
            data = engines.HOST.view(data.data.ptr, data.shape, None, gpucast.dtype(data.dtype), data)
        if not isinstance(x, PackedArray):
            return from_array(data)
        y = from_array(PackedArray(data, x.dtype, x.shape))
        return LibraryPackedArray(x.data, x.dtype, x.shape, "torch") if isinstance(y, PackedArray) else y

    monkeypatch.setattr(tensors, "from_array", there)

    def tensor(x: Any) -> Any:
        kind = gpucast.dtype(x.dtype)
        # Copies lie at multiples of 64 bytes: a program repeats for memory that is aligned as that of the first call.
        codes = torch.from_numpy(np.array(x, order="C").view(kind.code_numpy)).clone()
        return codes.view(getattr(torch, kind.numpy_name))

    return tensor


@pytest.mark.peers
@pytest.mark.parametrize("seed", _DEVICE_SEEDS)
def test_plans_change_nothing_for_tensors_on_devices(
    seed: int, tensor_on_device: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_on_device(seed, tensor_on_device, monkeypatch, 0)


@pytest.mark.peers
def test_what_requires_a_gradient_is_not_written_by_a_plan(tensor_on_device: Library) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, out, w = (tensor_on_device(np.ones((16, 32), np.float32)) for _ in range(3))
    w.requires_grad_()
    with installed(HostDriver()), torch.no_grad():
        for _ in range(3):
            gpucast.hadamard(x, 16, out=out)
        with pytest.raises(ValueError, match="out requires grad"):
            gpucast.hadamard(x, 16, out=w)
    assert torch.all(w == 1)


@pytest.mark.peers
@pytest.mark.parametrize("seed", range(30))
def test_plans_change_nothing_for_tensors(seed: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def tensor(x: Any) -> Any:
        kind = gpucast.dtype(x.dtype)
        codes = torch.from_numpy(np.array(x.astype(kind.numpy), order="C").view(kind.code_numpy))
        steps = [step // x.itemsize for step in x.strides]
        if x.size and min(steps, default=1) > 0:
            # As NumPy lays it out.
            codes = torch.empty_strided(x.shape, steps, dtype=codes.dtype).copy_(codes)
        y = codes.view(getattr(torch, kind.numpy_name))
        return y.requires_grad_() if x.shape[:1] == (5,) and y.is_floating_point() and kind.bits > 8 else y

    compare(seed, tensor)
