# SPDX-License-Identifier: Apache-2.0
"""Tensors of every type of onnxruntime: OrtValues and bindings, on the CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper

import gpucast
from codes import assert_same
from gpucast import PackedArray
from gpucast.core.dtypes import DType, dtype
from gpucast.onnx import ort
from gpucast.parity.cases import NUMERIC
from host_driver import upload
from tensors import sample

#: What onnxruntime does not know.
UNKNOWN = [row for row in NUMERIC if row.name.startswith("FLOAT6") or row.number is None]
KNOWN = [row for row in NUMERIC if row not in UNKNOWN]
#: What its Cast on the CPU takes.
CASTS = [row for row in KNOWN if row.name != "FLOAT4E2M1"]
FLOAT, STRING = dtype("FLOAT"), dtype("STRING")


def cast_session(src: DType, dst: DType) -> onnxruntime.InferenceSession:
    node = helper.make_node("Cast", ["x"], ["y"], to=dst.number)
    values = [helper.make_tensor_value_info(name, row.number, None) for name, row in (("x", src), ("y", dst))]
    opset = max(src.opset or 1, dst.opset or 1, 21)
    model = helper.make_model(
        helper.make_graph([node], "cast", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=11 if opset > 22 else 10,
    )
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def array(x: Any) -> np.ndarray:
    return x.get() if isinstance(x, PackedArray) else x


@pytest.mark.parametrize("row", KNOWN, ids=str)
def test_there_and_back(row: DType) -> None:
    for shape in ((), (0,), (3, 5), (2, 0, 3), (7,)):
        x = sample(row, shape)
        for form in (x, PackedArray.pack(x)) if row.packed else (x,):
            value = ort.ortvalue(form)
            assert (value.element_type(), tuple(value.shape()), value.device_name()) == (row.number, shape, "cpu")
            back = ort.from_ortvalue(value)
            assert isinstance(back, PackedArray) == row.packed
            assert_same(array(back), x)


def test_other_layouts_are_copied() -> None:
    for row in (FLOAT, dtype("BFLOAT16"), dtype("INT4")):
        x = sample(row, (4, 6))
        for view in (x.T, x[::2, ::-1], x[:, :1], np.broadcast_to(x[0], (3, 6))):
            assert_same(array(ort.from_ortvalue(ort.ortvalue(view))), view)
    x = np.array([1.5, -2.0], ">f4")
    assert_same(ort.from_ortvalue(ort.ortvalue(x)), x.astype(np.float32))
    assert ort.from_ortvalue(ort.ortvalue([1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("row", CASTS, ids=str)
def test_onnxruntime_reads_and_writes_the_values(row: DType) -> None:
    # Powers of two from 1 on: every type but BOOL has them, and both round them alike.
    powers = np.array([[1, 1, 1], [1, 1, 1]] if row.bits <= 2 else [[1, 2, 4], [4, 2, 1]], np.float32)
    for src, dst, x in ((row, FLOAT, sample(row, (3, 5))), (FLOAT, row, powers)):
        session, wanted = cast_session(src, dst), gpucast.cast(x, dst)
        (y,) = session.run_with_ort_values(["y"], {"x": ort.ortvalue(x)})
        out = np.zeros(x.shape, dst.numpy)
        bound, room = (PackedArray.pack(one) if dtype(one.dtype).packed else one for one in (x, out))
        binding = session.io_binding()
        ort.bind_input(binding, "x", bound)
        ort.bind_output(binding, "y", room)
        session.run_with_iobinding(binding)
        for found in (array(ort.from_ortvalue(y)), array(room)):
            if dst is FLOAT:
                # By value: onnxruntime's NaNs have other codes.
                np.testing.assert_array_equal(found, wanted, strict=True)
            else:
                assert_same(found, wanted)


def test_text() -> None:
    (y,) = cast_session(FLOAT, STRING).run_with_ort_values(["y"], {"x": ort.ortvalue(np.array([1.5], np.float32))})
    assert ort.from_ortvalue(y).tolist() == ["1.5"]
    for call in (ort.ortvalue, lambda x: ort.bind_input(cast_session(STRING, FLOAT).io_binding(), "x", x)):
        with pytest.raises(TypeError, match="x is STRING; onnxruntime takes it in session.run alone, as an object"):
            call(np.array(["1.5"], object))


@pytest.mark.parametrize("row", UNKNOWN, ids=str)
def test_types_that_onnxruntime_does_not_know(row: DType) -> None:
    with pytest.raises(TypeError, match=f"^ortvalue: onnxruntime .* does not know {row.name}"):
        ort.ortvalue(sample(row, (4,)))


class Binding:
    """Notes what is bound."""

    def __init__(self) -> None:
        self.bound: list[tuple[Any, ...]] = []

    def bind_input(self, *arguments: Any) -> None:
        self.bound.append(arguments)

    bind_output = bind_input


def test_arrays_on_a_device_are_bound_by_address() -> None:
    x = upload(sample(dtype("FLOAT8E5M2"), (3, 5)), device=1)
    packed = PackedArray(upload(PackedArray.pack(sample(dtype("INT4"), (3, 5))).data), "INT4", (3, 5))
    binding = Binding()
    ort.bind_input(binding, "x", x)
    ort.bind_output(binding, "y", packed)
    assert binding.bound == [
        ("x", "cuda", 1, dtype("FLOAT8E5M2").number, [3, 5], x.data.ptr),
        ("y", "cuda", 0, dtype("INT4").number, [3, 5], packed.data.data.ptr),
    ]
    with pytest.raises(TypeError, match=r"^ortvalue: x is on a device; bind it with bind_input"):
        ort.ortvalue(x)
    with pytest.raises(ValueError, match=r"^bind_input: x of shape \(5, 3\) is not contiguous and native"):
        ort.bind_input(binding, "x", x.T)


def test_bad_bindings() -> None:
    binding = Binding()
    x = np.ones((2, 3), np.float32)
    for bad in (x.T, x.astype(">f4")):
        with pytest.raises(ValueError, match="^bind_input: x of shape .* is not contiguous and native"):
            ort.bind_input(binding, "x", bad)
    with pytest.raises(TypeError, match="^bind_input: x holds INT4 one element per byte; expected a PackedArray"):
        ort.bind_input(binding, "x", x.astype(ml_dtypes.int4))
    with pytest.raises(TypeError, match="^bind_output: x is a list; expected a NumPy or CuPy array"):
        ort.bind_output(binding, "y", [1.0])
    x.flags.writeable = False
    with pytest.raises(ValueError, match="^bind_output: out is read-only"):
        ort.bind_output(binding, "y", x)
    assert binding.bound == []


def test_bad_values() -> None:
    with pytest.raises(TypeError, match="^from_ortvalue: value is a ndarray; expected an OrtValue that holds a tensor"):
        ort.from_ortvalue(np.ones(3))
    with pytest.raises(TypeError, match="^ortvalue: x.dtype=.*complex"):
        ort.ortvalue(np.ones(3, complex))
