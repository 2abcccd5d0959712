# SPDX-License-Identifier: Apache-2.0
"""Casts of PyTorch's tensors that compiled code takes as objects, and copies: which calls have a plan, what is left to
the custom op, and that nothing is kept or lost."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.casting import plan_cache
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule, resolve
from gpucast.interop import dlpack
from gpucast.native import calls, library, threads
from gpucast.native import cast as native_cast
from gpucast.reference import casting as reference
from native_library import check_references

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from gpucast.interop.torch import tensors  # noqa: E402

pytestmark = pytest.mark.peers

WHOLE = [row for row in tensors.TORCH_DTYPES if not row.packed]
RULE = resolve(dtype("FLOAT"), dtype("FLOAT16"))

if tensors.VIEW is None:
    pytest.skip("this PyTorch does not offer DLPack's functions of C", allow_module_level=True)


def content(x: Any) -> bytes:
    return bytes(x.reshape(-1).view(torch.uint8).numpy().tobytes())


def quick(rule: CastRule, empty_like: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """The compiled function."""
    native_cast.find(rule, 1)
    library.finish()
    cast = native_cast.find(rule)
    assert cast is not None and tensors.VIEW is not None
    empty_like = empty_like or partial(torch.empty_like, dtype=tensors.TORCH_DTYPES[rule.dst])
    run = cast.of_tensors(tensors.VIEW, empty_like)
    assert run is not None
    return run


@pytest.mark.parametrize("src", WHOLE, ids=str)
def test_every_pair_is_the_references(src: DType, native: None) -> None:
    values = np.random.default_rng(5).integers(0, 256, 2400, np.uint8).view(src.code_numpy).view(src.numpy)
    x = tensors.from_array(values)
    for dst in WHOLE:
        rule = resolve(src, dst)
        if src is not dst:
            quick(rule)
        elif src.family == "bool":
            quick(resolve(dtype("UINT8"), dst))
        wanted = reference.apply(values, rule).tobytes()
        plan_cache.forget()
        # The second call has a plan.
        for _ in range(2):
            y = gpucast.cast(x, dst)
            assert content(y) == wanted, dst
            assert y.data_ptr() != x.data_ptr()
        (plan,) = plan_cache.SIMPLE.values()
        assert content(plan.run(x, None)) == wanted


def test_tensors_of_every_shape(native: None) -> None:
    run = quick(RULE)
    for shape in ((), (1,), (1, 1, 1), (5, 7), (2,) * 12, (4, 1 << 10), (1 << 20,)):
        x = torch.linspace(-9, 9, max(1, int(np.prod(shape)))).reshape(shape)
        y = run(x)
        assert (y.shape, y.stride(), y.dtype) == (x.shape, x.stride(), torch.float16)
        assert torch.equal(y, x.half())
        assert y.untyped_storage().resizable()
    part = torch.arange(10.0)[3:7]
    assert torch.equal(run(part), part.half())
    with torch.inference_mode():
        assert run(part).is_inference()


def test_other_tensors_are_left(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run, x = quick(RULE), torch.arange(12.0).reshape(3, 4)
    memory = np.zeros(13, np.uint8)[1:].view(np.float32)
    with warnings.catch_warnings():
        # They are a prototype.
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([x[0], x[1, :2]])
    for other in (
        x.T, x[:, :2], x[::2], x[:1].expand(3, 4), torch.empty(0), torch.empty(3, 0, 2), x.to_sparse(), x.to_mkldnn(),
        torch.empty(3, device="meta"), torch._efficientzerotensor(3), nested,
        torch.from_numpy(memory),
    ):  # fmt: skip
        assert run(other) is None
    for to in ("FLOAT16", "FLOAT"):
        gpucast.cast(x, to)
        for other in (x.to_sparse(), nested):
            with pytest.raises(TypeError, match="x has the layout"):
                gpucast.cast(other, to)
        assert torch.equal(gpucast.cast(torch._efficientzerotensor(3), to) + 1, torch.ones(3))
        assert gpucast.cast(torch.empty(3, device="meta"), to).is_meta
        assert gpucast.cast(x.T, to).stride() == (1, 4)
    assert run() is None  # type: ignore[call-arg]
    monkeypatch.setattr(threads, "PART", 3_000)
    monkeypatch.setattr(threads, "most", lambda: 2)
    split = quick(RULE)
    assert split(torch.ones(999)) is not None
    assert split(torch.ones(1_000)) is None
    assert torch.equal(gpucast.cast(torch.ones(1_000), "FLOAT16"), torch.ones(1_000).half())


def test_calls_that_need_more_are_left(native: None) -> None:
    quick(RULE)
    x = torch.arange(-3.0, 3.0)
    for to in ("FLOAT16", "FLOAT"):
        wanted = gpucast.cast(x, to)
        run = plan_cache.SIMPLE[torch.Tensor, torch.float32, str, to].run
        assert torch.equal(run(x, None), wanted)
        assert run(x, torch.empty(6)) is None
        assert run(x.clone().requires_grad_(), None) is None
        negated = torch.complex(x, x).conj().imag
        assert negated.is_neg() and run(negated, None) is None
        assert torch.equal(gpucast.cast(negated, to), -wanted)
        seen: list[str] = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(function.name())  # noqa: B023 (called in this round alone)
                return function(*args, **(kwargs or {}))

        with Mode():
            assert run(x, None) is None
            gpucast.cast(x, to)
        assert "gpucast::cast" in seen
        assert torch.equal(torch.func.vmap(partial(gpucast.cast, to=to))(x.reshape(2, 3)).reshape(6), wanted)
        leaf = x.clone().requires_grad_()
        gpucast.cast(leaf, to).sum().backward()
        assert torch.equal(leaf.grad, torch.ones(6))
        with torch.autograd.forward_ad.dual_level():
            assert run(x, None) is None


def test_plans_do_not_make_the_compiler_trace_again(native: None) -> None:
    quick(RULE)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: gpucast.cast(x * 2, "FLOAT16"), fullgraph=True, backend=backend)
    x = torch.arange(5.0)
    for to in ("FLOAT16", "BFLOAT16", "FLOAT"):
        assert torch.equal(compiled(x), gpucast.cast(x * 2, "FLOAT16"))
        gpucast.cast(x, to)
    assert len(graphs) == 1
    assert torch.ops.gpucast.cast.default in [node.target for node in graphs[0].graph.nodes]


def test_a_new_tensor_that_is_no_plain_memory_is_left(native: None) -> None:
    assert quick(RULE, lambda x: torch.empty(5, 6, dtype=torch.float16).T)(torch.ones(6, 5)) is None

    def refuse(x: Any) -> Any:
        raise LookupError("no memory")

    with pytest.raises(LookupError, match="no memory"):
        quick(RULE, refuse)(torch.ones(3))


def test_nothing_is_kept_or_lost(native: None) -> None:
    run, x, sparse = quick(RULE), torch.ones(3), torch.ones(3).to_sparse()
    objects = (x, sparse, None, run)

    def each() -> None:
        run(x)
        run(sparse)

    check_references(each, objects)


@pytest.mark.parametrize("change", ["none", "name", "version"])
def test_which_functions_of_dlpack_are_known(change: str) -> None:
    table = dlpack._Exchange(2 if change == "version" else 1, 3, None, None, None, None, 77, None)
    name = b"another" if change == "name" else b"dlpack_exchange_api"
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    capsule = new(ctypes.addressof(table), name, None)
    kind = type("Kind", (), {"__dlpack_c_exchange_api__": capsule})
    assert dlpack.view_function(kind) == (77 if change == "none" else None)
    assert dlpack.view_function(int) is None


# ---- lists of tensors ----


@pytest.fixture
def lists(native: None) -> calls.TensorLists:
    calls.lists(1)
    library.finish()
    assert tensors.VIEW is not None
    found = calls.tensor_lists(tensors.VIEW)
    assert found is not None
    return found


def test_descriptions_of_lists(lists: calls.TensorLists) -> None:
    a, b = torch.zeros(2, 3), torch.ones(2, 3)
    kinds = [[torch.zeros(3).to(tensors.TORCH_DTYPES[row])] for row in WHOLE]
    one = lists.describe([a, b])
    assert one and lists.describe([b, a]) == one
    others = [
        [a], [a, b, a], [a, b.reshape(3, 2)], [a, b.reshape(6)], [a, b.reshape(1, 2, 3)], [torch.zeros(())], [],
        [torch.zeros(0)], [torch.zeros(2, 0, 3)], *kinds,
    ]  # fmt: skip
    assert len({one, *map(lists.describe, others)} - {None}) == len(others) + 1
    # Its strides are not those of a new tensor of its shape.
    row = torch.zeros(1, 4).T
    assert row.is_contiguous()
    for wrong in (
        a.T,
        a[:, :1],
        row,
        a.to_sparse(),
        torch.zeros(3, device="meta"),
        torch.nn.Parameter(a),
        None,
        1,
        [a],
    ):
        assert lists.describe([a, wrong]) is None
        assert lists.describe([a, wrong, b]) is None
    with pytest.raises(SystemError):
        lists.describe((a, b))


def test_addresses_of_lists(lists: calls.TensorLists) -> None:
    given = [torch.zeros(()), torch.zeros(0), torch.zeros(3, 4), torch.zeros(9)[4:], torch._efficientzerotensor(3)]
    assert lists.addresses(given).tolist() == [x.data_ptr() for x in given]
    assert lists.addresses([]).tolist() == []
    assert lists.addresses([given[2].T, given[2][:, 1:]]).tolist() == [given[2].data_ptr(), given[2].data_ptr() + 4]
    assert lists.addresses([given[2].to_sparse()]).tolist() == [0]


def test_outs_of_plans(lists: calls.TensorLists) -> None:
    quick(RULE)
    given = [torch.linspace(-4, 4, 12).reshape(12, 1), torch.arange(5.0)]
    # Contiguous, with strides that a new tensor would not have.
    outs = [torch.zeros(1, 12, dtype=torch.float16).T, torch.zeros(5, dtype=torch.float16)]
    assert outs[0].stride() == (1, 12) and outs[0].is_contiguous()
    for _ in range(3):
        for out in outs:
            out.zero_()
        assert gpucast.cast_many(given, "FLOAT16", out=outs) is outs
        assert all(torch.equal(x.half(), y) for x, y in zip(given, outs, strict=True))
    (plans,) = (plan for plan in plan_cache.PLANS.values() if not isinstance(plan, plan_cache.Plan))
    assert len(plans.plans) == 1


@pytest.mark.parametrize(("narrow", "wide", "wanted"), [("int4", "int8", [1, -1, 5]), ("uint4", "uint8", [1, 15, 5])])
def test_plans_tell_types_apart_that_dlpack_does_not(
    narrow: str, wide: str, wanted: list[int], lists: calls.TensorLists
) -> None:
    given = [torch.tensor([1, -1, 0x35], dtype=torch.int8).view(getattr(torch, wide)) for _ in range(2)]
    for name in (narrow, wide):
        quick(resolve(dtype(name.upper()), dtype("FLOAT16")))
    for name, numbers in ((narrow, wanted), (wide, given[0].tolist()), (narrow, wanted)):
        for _ in range(3):
            results = gpucast.cast_many([x.view(getattr(torch, name)) for x in given], "FLOAT16")
            assert [y.tolist() for y in results] == [numbers] * 2


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_results_of_plans_are_new_tensors(kind: Any, lists: calls.TensorLists) -> None:
    quick(RULE)
    shapes = ((), (3, 4), (0,), (5,), (2, 1, 3))
    with torch.no_grad():
        given = [torch.linspace(-4, 4, int(np.prod(shape))).reshape(shape) for shape in shapes]
        if kind is not torch.Tensor:
            given = [kind(x) for x in given]
        wanted = [x.half() for x in given]
        calls_of_plans = [gpucast.cast_many(given, "FLOAT16") for _ in range(3)]
    (plans,) = (plan for plan in plan_cache.PLANS.values() if not isinstance(plan, plan_cache.Plan))
    assert type(plans.plans[0].arrays[0]) is bytes
    for results in calls_of_plans:
        for x, y in zip(wanted, results, strict=True):
            assert (type(y), y.shape, y.stride(), y.requires_grad) == (torch.Tensor, x.shape, x.stride(), False)
            assert torch.equal(y, x)
    storages = {y.data_ptr() for results in calls_of_plans for y in results if y.numel()}
    assert len(storages) == 3 * 4
    with torch.inference_mode():
        assert all(y.is_inference() for y in gpucast.cast_many(given, "FLOAT16"))
    with torch.no_grad():
        assert not any(y.is_inference() for y in gpucast.cast_many(given, "FLOAT16"))
