# SPDX-License-Identifier: Apache-2.0
"""`gpucast.quantize` of tensors: parts that are tensors, results written into them, and gradients."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import gpucast

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.peers

W = torch.from_numpy(np.random.default_rng(4).standard_normal((6, 128)).astype(np.float32))
PARTS = {
    "mxfp8e4m3": {"data": torch.float8_e4m3fn, "scales": torch.float8_e8m0fnu},
    "mxfp4": {"data": torch.float4_e2m1fn_x2, "scales": torch.float8_e8m0fnu},
    "nvfp4": {"data": torch.float4_e2m1fn_x2, "scales": torch.float8_e4m3fn, "global_scale": torch.float32},
    "int8_zp_32": {"data": torch.int8, "scales": torch.float32, "zero_points": torch.int8},
    "uint4_zp_tensor": {"data": None, "scales": torch.float32, "zero_points": torch.uint8},
    "mxfp6e3m2": {"data": None, "scales": torch.float8_e8m0fnu},
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_quantized_tensor_are_tensors(name: str) -> None:
    q, wanted = gpucast.quantize(W, name), gpucast.quantize(W.numpy(), name)
    kinds = {part: x.dtype if isinstance(x, torch.Tensor) else None for part, x in q.parts().items()}
    assert kinds == PARTS[name]
    assert (q.shape, q.nbytes, q.library, q.device) == (wanted.shape, wanted.nbytes, "torch", "cpu")
    if kinds["data"] is None:
        assert gpucast.cast(q.data, "FLOAT").dtype is torch.float32
    elif kinds["data"] is torch.float4_e2m1fn_x2:
        assert q.data.shape == (6, 64) and q.data.view(torch.uint8).numpy().tobytes() == wanted.data.tobytes()
    else:
        assert q.data.view(torch.uint8).numpy().tobytes() == wanted.data.tobytes()
    for again in (
        q,
        pickle.loads(pickle.dumps(q)),
        copy.deepcopy(q),
        q.get(),
        gpucast.Quantized(**q.parts(), format=name),
    ):
        y = again.dequantize("FLOAT16")
        assert y.dtype is torch.float16 and y.numpy().tobytes() == wanted.dequantize("FLOAT16").tobytes()
    out = torch.empty(W.shape)
    assert q.dequantize(out=out) is out and out.numpy().tobytes() == wanted.dequantize().tobytes()
    made = gpucast.Quantized(**wanted.parts(), format=name, library="torch")
    assert torch.equal(made.dequantize(), q.dequantize()) and type(made.scales) is torch.Tensor
    assert type(q.plain().dequantize()) is np.ndarray and type(np.asarray(q)) is np.ndarray


@pytest.mark.parametrize("transpose", [False, True, "both"])
@pytest.mark.parametrize("name", PARTS)
def test_quantizing_into_tensors(name: str, transpose: Any) -> None:
    out = gpucast.quantize(-W, name, transpose=transpose)
    several = out if transpose == "both" else (out,)
    held = [part for q in several for part in q.parts().values()]
    versions = [part._version for part in held if isinstance(part, torch.Tensor)]
    assert gpucast.quantize(W, name, transpose=transpose, out=out) is out
    assert all(a is b for a, b in zip(held, (x for q in several for x in q.parts().values()), strict=True))
    # Autograd knows that they have changed.
    assert all(
        x._version > old for x, old in zip((x for x in held if isinstance(x, torch.Tensor)), versions, strict=True)
    )
    wanted = gpucast.quantize(W, name, transpose=transpose)
    for q, other in zip(several, wanted if transpose == "both" else (wanted,), strict=True):
        assert repr(q) == repr(other) and torch.equal(q.dequantize(), other.dequantize())
    for q in several:
        gpucast.quantize(W.T if q.shape == (128, 6) else W, name, out=q)


def test_layouts_of_scales_and_repacked_ones_are_tensors() -> None:
    q = gpucast.quantize(W, "mxfp8e4m3")
    swizzled = q.with_layout("128x4")
    assert swizzled.scales.dtype is torch.float8_e8m0fnu and swizzled.scales.shape == (512,)
    assert swizzled.linear_scales().dtype is torch.float8_e8m0fnu
    assert torch.equal(swizzled.linear_scales().view(torch.uint8), q.scales.view(torch.uint8))
    assert torch.equal(swizzled.dequantize(), q.dequantize())
    again = gpucast.quantization.repack(gpucast.quantize(W, "mxfp4"), "mxfp8e4m3")
    assert again.data.dtype is torch.float8_e4m3fn and again.library == "torch"
    odd = gpucast.quantize(W[:, :33], "mxfp4")
    assert isinstance(odd.data, gpucast.PackedArray) and odd.dequantize().shape == (6, 33)
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10):
        assert torch.from_dlpack(q.dlpack("scales")).dtype is torch.float8_e8m0fnu
    else:  # It has the types of 8 bits and fewer in DLPack from 2.10 on.
        with pytest.raises(BufferError, match="Unsupported code"):
            torch.from_dlpack(q.dlpack("scales"))


def test_a_gradient_that_a_quantized_tensor_would_lose_is_refused() -> None:
    w = W.clone().requires_grad_()
    ends = torch.tensor([6], dtype=torch.int32)
    calls: dict[str, Any] = {
        "quantize": lambda x: gpucast.quantize(x, "mxfp4").dequantize(),
        "quantize_grouped": lambda x: gpucast.quantize_grouped(x, ends, "mxfp8e4m3").data.float(),
        "cast_grouped": lambda x: gpucast.cast_grouped(x, ends, "FLOAT8E4M3FN", scale=1.0).data.float(),
    }
    for name, call in calls.items():
        with pytest.raises(
            ValueError, match=rf"^{name}: x requires grad, and codes with scales pass no gradient on; pass"
        ):
            call(w)
        with torch.no_grad():
            inside = call(w)
        assert torch.equal(inside, call(w.detach())) and not inside.requires_grad
    out = gpucast.quantize(w.detach(), "int8_32")
    with pytest.raises(ValueError, match=r"^quantize: x requires grad"):
        gpucast.quantize(w, "int8_32", out=out)
    out.scales.requires_grad_()
    with pytest.raises(ValueError, match=r"^quantize: out requires grad"):
        gpucast.quantize(w.detach(), "int8_32", out=out)


@pytest.mark.parametrize("name", ["mxfp8e4m3", "nvfp4"])
def test_an_out_of_another_library_is_no_example_for_later_results(name: str) -> None:
    for x, out in ((W.numpy(), torch.empty(6, 128)), (W, np.empty((6, 128), np.float32))):
        q = gpucast.quantize(x, name)
        for _ in range(2):
            q.dequantize("FLOAT", out=out)
            assert type(q.dequantize("FLOAT")) is type(x)


def test_long_transforms_by_a_plan_tell_autograd_with_pythons_lock() -> None:
    x, out = torch.linspace(-3, 3, 1 << 18).reshape(-1, 64), torch.empty(1 << 12, 64)
    wanted = gpucast.hadamard(x.numpy(), 64)
    for _ in range(3):
        np.testing.assert_array_equal(gpucast.hadamard(x, 64).numpy(), wanted)
        before = out._version
        assert gpucast.hadamard(x, 64, out=out) is out
        assert out._version > before
        np.testing.assert_array_equal(out.numpy(), wanted)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
def test_other_layouts_are_refused_by_name_after_calls_that_went_well() -> None:
    """A nested tensor has the class and the dtype of others, and no shape."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    calls: list[Any] = [
        lambda x: gpucast.quantize(x, "nvfp4", amax=2.0),
        lambda x: gpucast.hadamard(x, 16),
        lambda x: gpucast.cast_grouped(x, torch.tensor([6], dtype=torch.int32), "FLOAT16", scale=1.0),
        lambda x: gpucast.mixed.fake_cast(x, "FLOAT16"),
        lambda x: gpucast.mixed.fake_cast(x, "mxfp8e4m3"),
    ]
    for call in calls:
        call(W), call(W)
        for x in (nested, jagged, torch.ones(4).to_mkldnn(), torch.ones(2, 2).to_sparse_csr()):
            with pytest.raises(TypeError, match=r"^\w+: x has the layout \w+; expected a strided tensor"):
                call(x)


def test_a_scale_is_a_tensor_without_a_gradient() -> None:
    x, scale = torch.linspace(-3, 3, 64).reshape(2, 32), torch.tensor([[0.5], [0.25]])
    for _ in range(2):
        q = gpucast.quantize(x, "int8_32", scale=scale)
        assert torch.equal(q.scales, scale) and q.dequantize()[1, 0] == 0.0
        with pytest.raises(ValueError, match=r"^quantize: scale requires grad, and is not differentiable"):
            gpucast.quantize(x, "int8_32", scale=scale.clone().requires_grad_())
