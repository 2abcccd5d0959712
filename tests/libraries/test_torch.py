# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors of the host through `gpucast.cast`; `test_torch_device.py` has those of a device."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same, values
from foreign_arrays import NUMERIC, PAIRED, from_torch, tensor
from gpucast import PackedArray
from gpucast.core import extension
from gpucast.core.dtypes import DTYPES, dtype

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from gpucast.libraries.torch import tensors  # noqa: E402

pytestmark = pytest.mark.peers

#: Types of which torch has whole elements; the integers below one byte as input only.
HELD = [row for row in DTYPES if hasattr(torch, row.numpy_name)]
WHOLE = [row for row in HELD if not row.packed]


def test_torch_dtypes_name_types() -> None:
    x = torch.ones(4)
    for row in HELD:
        assert gpucast.dtype(getattr(torch, row.numpy_name)) is row
        assert_same(
            from_torch(gpucast.cast(x, getattr(torch, row.numpy_name)), row), gpucast.reference.cast(x.numpy(), row)
        )
        assert_same(
            from_torch(gpucast.cast_like(x, tensor(values(row, (0,)))), row), gpucast.reference.cast(x.numpy(), row)
        )
    assert gpucast.dtype(torch.float4_e2m1fn_x2) is PAIRED
    assert gpucast.cast_like(x, tensor(values(PAIRED, (2,)))).dtype is torch.float4_e2m1fn_x2
    with pytest.raises(TypeError, match="to=torch.complex64 is complex|'complex64' is complex"):
        gpucast.cast(x, torch.complex64)


@pytest.mark.skipif(
    extension.MODULE is None or not tensors.VIEW or not Path("/sys/kernel/mm/transparent_hugepage").exists(),
    reason="needs the extension module, a torch with DLPack's functions, and Linux with large pages",
)
def test_large_results_ask_for_large_pages() -> None:
    x, flags = torch.ones(1 << 23), {}
    # The first call makes the plan.
    gpucast.cast_many([x[:8]], "DOUBLE")
    gpucast.cast(x[:8], "DOUBLE")
    for y in (gpucast.cast(x, "DOUBLE"), gpucast.cast(x, "DOUBLE"), *gpucast.cast_many([x, x], "DOUBLE")):
        inside = y.data_ptr() + y.nbytes // 2
        for line in Path("/proc/self/smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):
                begin, end = (int(word, 16) for word in words[0].split("-"))
            elif words[0] == "VmFlags:" and begin <= inside < end:
                flags[y.data_ptr()] = words
        assert "hg" in flags[y.data_ptr()]
    assert x[0] == y[0] == y[-1] == 1


def test_nothing_is_copied_where_nothing_has_to_be() -> None:
    for row in WHOLE:
        x = tensor(values(row, (4, 6)))
        for view in (x, x.T, x[1:, ::2]):
            assert tensors.take(view, "test").ctypes.data == view.data_ptr()
        if row.family != "bool":
            assert gpucast.cast(x, row, copy=False) is x
        y = gpucast.cast(x, row)
        assert y is not x and y.data_ptr() != x.data_ptr()
    pairs = tensor(values(PAIRED, (4, 6)))
    assert tensors.take(pairs, "test").data.ctypes.data == pairs.data_ptr()
    assert gpucast.cast(pairs, PAIRED, copy=False) is pairs
    assert gpucast.cast(pairs, PAIRED).data_ptr() != pairs.data_ptr()
    packed = gpucast.cast(torch.ones(4, 6), "INT4")
    assert packed.to_torch().data_ptr() == packed.data.ctypes.data
    x = torch.nn.Parameter(torch.ones(3))
    assert gpucast.cast(x, torch.float32, copy=False) is x


def test_out_of_another_kind() -> None:
    x = values(dtype("FLOAT"), (4, 6))
    other = torch.empty(4, 6, dtype=torch.float16)
    assert gpucast.cast(x, "FLOAT16", out=other) is other
    assert_same(from_torch(other, dtype("FLOAT16")), gpucast.reference.cast(x, "FLOAT16"))
    packed = PackedArray(np.zeros(12, np.uint8), "INT4", (4, 6))
    assert gpucast.cast(torch.from_numpy(x), "INT4", out=packed) is packed
    assert_same(packed.get(), gpucast.reference.cast(x, "INT4"))


@pytest.mark.parametrize("to", ["FLOAT16", "FLOAT8E4M3FN", "INT4", "FLOAT4E2M1"])
def test_an_array_as_the_out_of_a_tensor(to: str) -> None:
    """Of one cast and of many, cold and by the plan of an earlier call."""
    x, row = values(dtype("FLOAT"), (4, 6)), dtype(to)
    for given, keywords in (
        (torch.from_numpy(x), {}),
        (torch.from_numpy(x).T, {}),
        (torch.from_numpy(x), {"scale": 2}),
    ):
        wanted = gpucast.cast(given.numpy(), row, **keywords)
        for _ in range(2):
            one, many = (np.zeros(given.shape, row.numpy) for _ in range(2))
            assert gpucast.cast(given, row, out=one, **keywords) is one
            gpucast.cast_many([given], row, out=[many], **keywords)
            gpucast.cast(given, row, **keywords)
            for result in (one, many):
                assert_same(result, wanted)


def test_packed_arrays_as_tensors() -> None:
    for row in NUMERIC:
        if row.packed:
            x = values(row, (3, 8))
            packed = PackedArray.pack(x)
            y = packed.to_torch()
            assert y.data_ptr() == packed.data.ctypes.data
            assert y.dtype is (torch.float4_e2m1fn_x2 if row is PAIRED else torch.uint8)
            assert y.shape == ((3, 4) if row is PAIRED else (3, 8 * row.bits // 8))
            assert y.view(torch.uint8).numpy().tobytes() == packed.tobytes()
            with pytest.raises(ValueError, match=r"needs a last axis of whole bytes; .* of shape \(8, 3\) has not"):
                PackedArray.pack(x.reshape(8, 3)).to_torch()
            if hasattr(torch, row.numpy_name):
                assert PackedArray.pack(tensor(x)).tobytes() == packed.tobytes()
    # The first element lies in the low bits: torch's own exporter to ONNX reads pairs so.
    first = PackedArray.pack(np.array([1, -6], ml_dtypes.float4_e2m1fn)).to_torch()
    assert first.view(torch.uint8).tolist() == [0xF2]
    readonly = gpucast.from_bytes(bytes(4), "INT4", (8,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert readonly.to_torch().tolist() == [0, 0, 0, 0]


def test_dlpack_with_torch() -> None:
    """torch's own import and export, as an independent judge of the capsules."""
    from gpucast.libraries import dlpack

    # torch has float8 and float4 in DLPack from 2.10 on.
    is_old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10)
    for row in [row for row in WHOLE if not (is_old and row.is_float and row.bits == 8)]:
        x = values(row, (4, 6))
        for view in (x, x.T, x[1:, ::2]):
            y = torch.from_dlpack(dlpack.Export(view))
            assert_same(from_torch(y, row), view)
            assert y.data_ptr() == view.ctypes.data
            back = dlpack.take(y, "test")
            assert_same(back, view)
            assert back.ctypes.data == view.ctypes.data
    x = values(PAIRED, (4, 6))
    packed = PackedArray.pack(x)
    if not is_old:
        y = torch.from_dlpack(packed)
        assert_same(from_torch(y, PAIRED), x)
        assert y.data_ptr() == packed.data.ctypes.data
        back = dlpack.take(y, "test")
        assert_same(back.get(), x)
    with pytest.raises(BufferError, match="no library takes INT4 through DLPack"):
        torch.from_dlpack(PackedArray.pack(values(dtype("INT4"), (4, 6))))


# ---- the op ----


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.ones(3, 4), "FLOAT16"),
        (torch.ones(3, 4)[:, ::2].requires_grad_(), "BFLOAT16", False),
        (torch.ones(2, 3, 4).permute(2, 0, 1)[::2], "INT8", True, "up", 28, "nearest_even", "saturate"),
        (torch.ones(3, 4), "INT4"),
    ],
    ids=lambda arguments: arguments[1],
)
def test_opcheck(arguments: Any) -> None:
    """torch's own checks of a custom op: the schema, the gradient's registration, and that fake and real agree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(torch.ops.gpucast.cast.default, arguments)


def test_the_op_by_itself() -> None:
    x = torch.tensor([[0.5, 1e9], [-3, float("nan")]])
    assert torch.equal(torch.ops.gpucast.cast(x, "INT8", overflow="saturate"), torch.tensor([[0, 127], [-3, 0]]).char())
    assert torch.ops.gpucast.cast(x, "INT4").tolist() == list(gpucast.cast(x, "INT4").tobytes())
    for arguments, error, match in (
        ((x, "FLOAT7"), TypeError, "cast: to='FLOAT7' is not a dtype"),
        ((x, "STRING"), TypeError, "torch has no STRING"),
        ((x, "FLOAT8E8M0", True, "sideways"), ValueError, "round_mode='sideways' is not legal"),
    ):
        with pytest.raises(error, match=match):
            torch.ops.gpucast.cast(*arguments)


def test_meta_tensors_have_shapes_and_types_alone() -> None:
    x = torch.empty(3, 4, device="meta")
    y = gpucast.cast(x, "FLOAT8E5M2")
    assert y.is_meta and y.shape == (3, 4) and y.dtype is torch.float8_e5m2
    for call in (
        lambda: gpucast.cast(x, "INT4"),
        lambda: gpucast.cast(x, "STRING"),
        lambda: gpucast.cast_report(x, "INT4"),
    ):
        with pytest.raises(TypeError, match="x is a meta tensor, which has no elements"):
            call()


# ---- what is refused ----


def unusual(make: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda x: x.to_sparse(), "x has the layout sparse_coo; expected a strided tensor"),
        (lambda x: x.to_sparse_csr(), "x has the layout sparse_csr"),
        (lambda x: torch.nested.nested_tensor([x, x]), "x has the layout nested"),
        (lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "x has the layout nested"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), r"x is quantized; cast x\.int_repr\(\)"),
        (lambda x: x.to(torch.complex64), r"x\.dtype='complex64' is complex"),
        (lambda x: x.to(torch.complex64).conj(), r"x\.dtype='complex64' is complex"),
        (lambda x: x.view(torch.uint8).view(torch.bits8), r"x\.dtype='bits8' is not a dtype"),
        (lambda x: x.view(torch.uint8).view(torch.uint3), r"x\.dtype='uint3' is not a dtype"),
    ],
)
def test_tensors_that_cast_does_not_take(make: Any, match: str) -> None:
    x = unusual(lambda: make(torch.ones(3, 4)))
    for call in (gpucast.cast, gpucast.cast_report):
        with pytest.raises(TypeError, match=match):
            call(x, "FLOAT16")


@pytest.mark.parametrize("offset", [0, 3])
def test_tensors_whose_storage_was_given_back(offset: int) -> None:
    """As sharded training does with weights that it does not need: torch makes NumPy arrays of other memory of them."""

    def gone(kind: Any, *shape: int) -> Any:
        x = torch.ones((offset + 1, *shape), dtype=kind)[offset]
        x.untyped_storage().resize_(0)
        return x

    x, y = torch.ones(4, 32), torch.zeros(4, 32, dtype=torch.float16)
    reads = [
        lambda x: gpucast.cast(x, "FLOAT16"),
        lambda x: gpucast.cast(x, "FLOAT"),
        lambda x: gpucast.cast(y, "FLOAT16", scale=x),
        lambda x: gpucast.cast(y, "FLOAT16", amax=x),
        lambda x: gpucast.cast_many([y, x], "BFLOAT16"),
        lambda x: gpucast.cast_report(x, "FLOAT16"),
        lambda x: gpucast.quantize(x, "mxfp8e4m3"),
    ]
    writes = [
        lambda y: gpucast.cast(x, "FLOAT16", out=y),
        lambda y: gpucast.cast_many([x, x], "FLOAT16", out=[torch.empty_like(y), y]),
    ]
    for call, good, bad in (
        *((call, torch.ones(1, 1), gone(torch.float32, 1, 1)) for call in reads),
        *((call, y, gone(torch.float16, 4, 32)) for call in writes),
    ):
        # Later calls have a plan.
        for _ in range(3):
            call(good)
        with pytest.raises(TypeError, match=r"^(cast|cast_many|cast_report|quantize): .*without memory"):
            call(bad)


def test_tensors_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(4, 32)
    with FakeTensorMode():
        fake = torch.ones(4, 32)

    class WrapperTensor(torch.Tensor):
        """Its elements are those of others, as a DTensor's are."""

        @classmethod
        def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
            raise NotImplementedError(function)

    wrapper = torch.Tensor._make_wrapper_subclass(WrapperTensor, (4, 32))

    def total(x: Any) -> Any:
        gpucast.quantize(x, "mxfp8e4m3")
        return x.sum()

    refused = r"x is a (Fake|Wrapper)?Tensor without memory of its own, as within a transform of torch\.func, while"
    for device in (None, 1):
        monkeypatch.setattr(tensors, "device_of", lambda x, caller, device=device: device)
        for call in (
            lambda: torch.func.grad(total)(x),
            lambda: torch.vmap(total)(x),
            lambda: total(fake),
            lambda: total(wrapper),
        ):
            with pytest.raises(TypeError, match=f"^quantize: {refused}"):
                call()
    monkeypatch.undo()
    with pytest.raises(TypeError, match=f"^cast: {refused}"):
        torch.vmap(lambda x: gpucast.cast(x, "STRING"))(x)
    # Between two graphs it is called as ever.
    torch._dynamo.reset()
    x = torch.linspace(-3, 3, 128).reshape(4, 32)
    found, wanted = torch.compile(lambda x: gpucast.quantize(2 * x, "mxfp8e4m3"), backend="eager")(x), 2 * x
    assert found.data.dtype is torch.float8_e4m3fn
    assert_same(found.plain().data, gpucast.quantize(wanted.numpy(), "mxfp8e4m3").data)


def test_negated_views() -> None:
    x = torch.tensor([1 + 2j, -3 - 4j]).conj().imag
    assert x.is_neg()
    assert gpucast.cast(x, "FLOAT16").tolist() == gpucast.cast(x, "STRING").astype(float).tolist() == [-2, 4]
    with pytest.raises(ValueError, match="out is a negated view"):
        gpucast.cast(torch.ones(2), "FLOAT", out=x)


def test_bad_calls() -> None:
    x, grown = torch.ones(4, 6), torch.ones(4, 6, requires_grad=True)
    half, one = torch.empty(4, 6, dtype=torch.float16), torch.ones(1, requires_grad=True)
    pairs = torch.zeros(3, 4).byte().T.view(torch.float4_e2m1fn_x2)
    for source, to, keywords, error, match in (
        (x, "FLOAT16", {"out": half.clone().requires_grad_()}, ValueError, "cast: out requires grad"),
        (x.numpy(), "FLOAT16", {"out": half.clone().requires_grad_()}, ValueError, "out requires grad"),
        (grown, "FLOAT16", {"out": half}, ValueError, "x requires grad, and out= is not differentiable"),
        (grown, "FLOAT16", {"out": half, "scale": 2.0}, ValueError, "x requires grad, and out= is not differentiable"),
        (x, "FLOAT16", {"scale": one}, ValueError, "cast: scale requires grad, and is not diff"),
        (x, "FLOAT16", {"amax": one}, ValueError, "cast: amax: out requires grad"),
        (x, "FLOAT16", {"amax": torch.ones(1).double()}, TypeError, "cast: amax has dtype float64; expected FLOAT"),
        (x, "FLOAT16", {"amax": x[0, 1:2]}, ValueError, "cast: amax shares memory with x"),
        (x, "STRING", {"scale": 2.0}, ValueError, "cast: scale= does not apply to text"),
        (x, "FLOAT16", {"out": half[:1].expand(4, 6)}, ValueError, "elements of out share memory"),
        (x, "FLOAT16", {"out": half.to("meta")}, ValueError, "out is on meta; the result belongs on cpu"),
        (x, "FLOAT16", {"out": [1.0]}, TypeError, r"out is list; expected a tensor of FLOAT16 and shape \(4, 6\)"),
        (x, "INT4", {"out": [1]}, TypeError, "out is list; expected a PackedArray of INT4"),
        (x, "INT4", {"out": x.numpy()}, TypeError, "out has dtype float32; expected int4"),
        (grown, "FLOAT16", {"out": half.numpy()}, ValueError, "x requires grad, and out= is not differentiable"),
        (x, "FLOAT16", {"out": half.to_sparse()}, TypeError, "layout sparse_coo"),
        (x[:, :5], "FLOAT4E2M1", {}, ValueError, r"x has shape \(4, 5\); torch has FLOAT4E2M1 in pairs"),
        (x, "FLOAT4E2M1", {"out": pairs}, ValueError, "pairs that are not contiguous"),
        (x, "FLOAT16", {"out": pairs.T.contiguous()}, TypeError, "cast: out is PackedArray; expected an array of FLO"),
    ):
        with pytest.raises(error, match=match):
            gpucast.cast(source, to, **keywords)


# ---- scale, amax and random rounding ----


def test_a_scale_that_changed_before_the_backward_pass_is_noticed() -> None:
    leaf, scale = torch.ones(3, requires_grad=True), torch.tensor(2.0)
    y = gpucast.cast(leaf, "FLOAT16", scale=scale)
    scale.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_functions_of_functions() -> None:
    """The transforms of torch.func, of plain casts and of fused ones."""
    x = torch.linspace(-2, 2, 24).reshape(4, 6)
    for keywords, slope in (
        ({}, 1),
        ({"scale": 3.5}, 3.5),
        ({"scale": torch.tensor(3.5)}, 3.5),
        ({"rounding": "stochastic", "seed": 2**64 - 1, "offset": 2**63}, 1),
    ):

        def total(x: Any, keywords: Any = keywords) -> Any:
            return gpucast.cast(x, "BFLOAT16", **keywords).float().sum()

        assert torch.equal(torch.func.grad(total)(x), torch.full_like(x, slope))
        assert torch.equal(torch.vmap(torch.func.grad(total))(x), torch.full_like(x, slope))
    scales, amax, largest = torch.arange(4.0), torch.zeros(()), torch.zeros(4)
    y = torch.vmap(lambda x, scale: gpucast.cast(x, "FLOAT8E5M2", scale=scale))(x, scales)
    assert_same(from_torch(y, dtype("FLOAT8E5M2")), gpucast.cast((x * scales[:, None]).numpy(), "FLOAT8E5M2"))
    torch.vmap(lambda x: gpucast.cast(x, "FLOAT16", amax=amax))(x)
    torch.vmap(lambda x, amax: gpucast.cast(x, "FLOAT16", amax=amax))(x, largest)
    assert amax == 2 and torch.equal(largest, x.abs().amax(1))
    # What else a scale may be is as in a plain call.
    for scale in (np.float32(0.5), np.full(1, 0.5), 2):
        y = torch.vmap(lambda x, scale=scale: gpucast.cast(x, "FLOAT16", scale=scale))(x)
        assert torch.equal(y, gpucast.cast(x, "FLOAT16", scale=scale))
    for scale, error in ((True, TypeError), ("0.5", TypeError), (-1.0, ValueError), (np.ones(2), ValueError)):
        with pytest.raises(error, match="^cast: scale"):
            torch.vmap(lambda x, scale=scale: gpucast.cast(x, "FLOAT16", scale=scale))(x)
    with pytest.raises(TypeError, match="torch.vmap cannot batch a cast to INT4"):
        torch.vmap(lambda x: gpucast.cast(x, "INT4", scale=2.0))(x)


# torch's own use of what it has deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("keywords", [{}, {"scale": 2.0}], ids=str)
def test_forward_mode_is_refused(keywords: dict[str, Any]) -> None:
    """torch itself would give a plain op's result without its tangent, as if it were a constant."""
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        x = forward.make_dual(torch.ones(16), torch.ones(16))
        for name, call in (
            ("cast", gpucast.cast),
            (r"cast_many: arrays\[0\]", lambda x, to, **keywords: gpucast.cast_many([x], to, **keywords)),
            ("fake_cast", gpucast.mixed.fake_cast),
            ("hadamard", lambda x, to, **_: gpucast.hadamard(x, 16)),
        ):
            with pytest.raises(NotImplementedError, match=rf"^{name}: forward mode .*not supported; expected reverse"):
                call(x, "FLOAT16", **keywords)
        assert torch.equal(
            gpucast.cast(torch.ones(16), "FLOAT16", **keywords).float(), torch.full((16,), 2.0 if keywords else 1.0)
        )
