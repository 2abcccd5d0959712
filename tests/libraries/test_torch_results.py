# SPDX-License-Identifier: Apache-2.0
"""The results of casts of PyTorch tensors: kinds that come back as tensors, and arrays that they are written to."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same
from foreign_arrays import NUMERIC, from_torch
from gpucast import PackedArray
from gpucast.core.dtypes import DTYPES, DType, dtype

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.peers

#: Types of which torch has whole elements.
WHOLE = [row for row in DTYPES if hasattr(torch, row.numpy_name) and not row.packed]


@pytest.mark.parametrize("row", [row for row in NUMERIC if row.packed], ids=str)
def test_types_below_one_byte_come_back_as_tensors(row: DType) -> None:
    x = np.random.default_rng(4).standard_normal((3, 8)).astype(np.float32) * 3
    packed = gpucast.cast(torch.from_numpy(x), row)
    codes = gpucast.cast(x, row)
    for dst in WHOLE:
        y = gpucast.cast(packed, dst)
        assert isinstance(y, torch.Tensor) and y.shape == (3, 8)
        assert_same(from_torch(y, dst), gpucast.cast(codes, dst))
    other = gpucast.cast(packed, "INT2")
    assert_same(from_torch(other, dtype("INT2")), gpucast.cast(codes, "INT2"))
    assert isinstance(gpucast.cast(other, "FLOAT"), torch.Tensor)
    assert gpucast.cast(packed, "STRING").tolist() == gpucast.cast(codes, "STRING").tolist()


def test_parts_and_copies_of_packed_tensors_come_back_as_tensors_too() -> None:
    packed = gpucast.cast(torch.arange(-4, 4), "INT4")
    assert isinstance(packed, PackedArray) and "PackedArray([-4, -3" in repr(packed)
    for part in (packed[2:6], packed.reshape(2, 4), packed.copy(), pickle.loads(pickle.dumps(packed))):
        y = gpucast.cast(part, "FLOAT")
        assert isinstance(y, torch.Tensor) and y.tolist() == part.tolist()
    assert isinstance(packed.astype(torch.float32), torch.Tensor)
    # For NumPy they are what any PackedArray is.
    for kind in (np.float32, ml_dtypes.bfloat16, object):
        assert type(np.asarray(packed, dtype=kind)) is np.ndarray
    assert (packed == packed.tolist()).all() and (packed == np.arange(-4, 4)).all() and (packed == packed).all()
    (many,) = gpucast.cast_many([packed], "BFLOAT16")
    assert many.dtype is torch.bfloat16 and many.tolist() == packed.tolist()
    assert gpucast.cast(packed, "INT4", copy=False) is packed
    out = np.empty(8, np.float32)
    assert gpucast.cast(packed, "FLOAT", out=out) is out and out.tolist() == packed.tolist()
    into = torch.empty(8)
    assert gpucast.cast(packed, "FLOAT", out=into) is into and into.tolist() == packed.tolist()
    # What was never a tensor stays what it is.
    assert isinstance(gpucast.cast(PackedArray.pack(packed.get()), "FLOAT"), np.ndarray)


def test_devices_of_torch() -> None:
    x = torch.ones(3)
    for device in (torch.device("cpu"), torch.device("cpu", 0)):
        assert gpucast.cast(x, "FLOAT16", device=device).device.type == "cpu"
        assert gpucast.quantize(torch.ones(32), "mxfp4", device=device).device == "cpu"
    with pytest.raises(gpucast.DeviceUnavailable):
        gpucast.cast(np.ones(3), "FLOAT16", device=torch.device("cuda", 0))
    with pytest.raises(TypeError, match="is not a device; expected None, 'cpu', 'cuda' or 'cuda:N'"):
        gpucast.cast(x, "FLOAT16", device=torch.device("meta"))


def test_a_packed_out_is_checked_before_anything_is_written() -> None:
    """Of `cast` as of `cast_many`: a tensor of the host into elements that share bytes."""
    b = np.arange(8, dtype="f4")
    x, fixed, amax = torch.from_numpy(b), np.zeros(4, "u1"), np.zeros(1, "f4")
    fixed.flags.writeable = False
    shared = PackedArray(np.zeros(4, "u1"), "INT4", (8,))
    for out, given, match in (
        (PackedArray(fixed, "INT4", (8,)), {"amax": amax}, "out is read-only"),
        (PackedArray(b.view("u1")[:4], "INT4", (8,)), {}, "out overlaps x"),
        (shared, {"amax": shared.data.view("f4")}, "shares memory with amax"),
        (PackedArray(np.zeros(4, "u1"), "UINT4", (8,)), {}, "out has dtype UINT4; expected INT4"),
        (PackedArray(np.zeros(2, "u1"), "INT4", (4,)), {}, "out has shape"),
    ):
        for call in (
            lambda out=out, given=given: gpucast.cast(x, "INT4", out=out, **given),
            lambda out=out, given=given: gpucast.cast_many([x], "INT4", out=[out], **given),
        ):
            with pytest.raises((TypeError, ValueError), match=match):
                call()
    assert amax[0] == 0
    assert np.array_equal(b, np.arange(8))


def test_errors_of_an_out_name_the_function_that_was_called() -> None:
    with pytest.raises(ValueError, match="^cast_like: out has shape"):
        gpucast.cast_like(torch.zeros(8), np.ones(3, "f2"), out=np.zeros(3, "f2"))
    for out, match in (
        (torch.empty(4, dtype=torch.float16), r"has shape \(4,\)"),
        (torch.empty(3), "has dtype float32"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^cast_like: out {match}"):
            gpucast.cast_like(torch.ones(3), np.ones(1, "f2"), out=out)
