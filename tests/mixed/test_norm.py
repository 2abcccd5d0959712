# SPDX-License-Identifier: Apache-2.0
"""`norm=` and `clip=` of `LossScale.unscale`: the order of additions, the same bits on the host and by the kernels."""

from __future__ import annotations

import gc
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from gpucast.casting import batch_items
from gpucast.codegen.cast_kernel import KernelSource
from gpucast.gpu.workspace import Workspace
from gpucast.mixed import DynamicLossScale, NoOpLossScale, StaticLossScale
from host_driver import HostDriver, Quiet, download, installed, upload

Array = np.ndarray[Any, Any]
KINDS = (np.float32, ml_dtypes.bfloat16)


def pairs(numbers: list[float]) -> float:
    while len(numbers) > 1:
        numbers = [a + b for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    return numbers[0]


def block(threads: list[float]) -> float:
    return pairs([pairs(threads[lane::32]) for lane in range(32)])


def model(arrays: list[Array]) -> float:
    """The sum of squares as the text of gpucast/mixed/sum_of_squares.py has it, one addition at a time."""
    sums = []
    for array in arrays:
        x = array.astype(np.float64).reshape(-1).tolist()
        for begin in range(0, len(x), 8192):
            threads = [0.0] * 256
            for i, number in enumerate(x[begin : begin + 8192]):
                threads[i // 8 % 256] += number * number
            sums.append(block(threads))
    return block([sum(sums[t::256], 0.0) for t in range(256)])


def gradients(seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    sizes = (5, 8192, 8193, 20001, 0, 1, 300, 777)
    return [
        (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 4, n)).astype(KINDS[i % 2]) for i, n in enumerate(sizes)
    ] + [rng.standard_normal((3, 40)).astype(np.float32)]


def clipped(arrays: list[Array], inverse: Any, clip: float) -> tuple[np.float32, np.float32]:
    """The norm and the factor, as the docstring has them."""
    norm = math.sqrt(model(arrays)) * float(inverse)
    share = float(np.float32(clip)) / (norm + 1e-6)
    return np.float32(norm), np.float32(float(inverse) * share) if share < 1 else np.float32(inverse)


@pytest.mark.parametrize("clip", [0.05, 1e9])
def test_norm_and_clip_are_those_of_the_model_on_both_sides(clip: float) -> None:
    grads, scale = gradients(), 1000.0
    grads[-1] = grads[-1].T
    norm = np.zeros((), np.float32)
    expected, factor = clipped([*grads[:-1], grads[-1].T], np.float32(1) / np.float32(scale), clip)
    results, finite = StaticLossScale(scale).unscale(grads, norm=norm, clip=clip)
    assert (bool(finite), norm.tobytes()) == (True, expected.tobytes())
    for x, y in zip(grads, results, strict=True):
        assert y.tobytes() == gpucast.cast(x, "FLOAT", scale=float(factor)).tobytes()
    with installed(HostDriver(1)) as driver:
        on_device, there = DynamicLossScale(scale), upload(np.zeros(1, np.float32))
        # At odd addresses, as slices of a flat buffer are.
        tree = [upload(x, offset=x.itemsize * (i % 3)) for i, x in enumerate(grads[:-1])] + [upload(grads[-1].T).T]
        out = [upload(y) for y in results]
        for _ in range(2):
            done, finite = on_device.unscale(tree, norm=there, clip=clip, out=out)
            assert done is out
            assert [download(y).tobytes() for y in out] == [y.tobytes() for y in results]
            assert (download(there).tobytes(), bool(download(finite))) == (norm.tobytes(), True)
            # A second time nothing is allocated: a graph can capture it.
            finite, driver.capture = upload(np.ones((), bool)), True
            driver.launched.clear()
            driver.copied = 0
            on_device.unscale(tree, norm=there, clip=clip, out=out, finite=finite)
            driver.capture = False
        assert driver.copied == 0
        assert [name.split("_")[1] for name, _ in driver.launched[:2]] == ["squares", "norm"]
        assert len(driver.launched) <= 4


def test_no_kernel_is_loaded_for_a_check() -> None:
    with installed(Quiet()) as driver:
        grads, norm = [upload(np.ones(300, np.float32)) for _ in range(2)], upload(np.zeros(1, np.float32))
        StaticLossScale(8.0).unscale(grads, norm=norm, out=[upload(np.ones(300, np.float32)) for _ in grads])
        assert [name.split("_")[1] for name, _ in driver.loaded] == ["squares", "norm"]


@pytest.mark.parametrize("to", ["FLOAT", "BFLOAT16", "FLOAT8E5M2"])
@pytest.mark.parametrize("bad", [0.0, np.nan])
def test_a_norm_without_clip_takes_no_read_of_its_own(to: str, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    grads = [*gradients()[:-1], np.arange(300, dtype=np.float64), gpucast.cast(np.arange(99), "FLOAT8E4M3FN")]
    grads[3][77] += np.float32(bad)
    norm, scale = np.zeros((), np.float32), StaticLossScale(1000.0)
    expected, finite = scale.unscale(grads, to=to, norm=norm)
    assert bool(finite) == (bad == 0)
    with installed(HostDriver(1)) as driver:
        there = upload(np.zeros(1, np.float32))
        tree = [upload(x, offset=x.itemsize * (i % 3)) for i, x in enumerate(grads)]
        # In another order than their gradients, which takes a read for each; then alike, and captured.
        turned = upload(np.zeros((30, 10), gpucast.dtype(to).numpy)).T
        alike = [upload(np.zeros_like(y), offset=y.itemsize * (i % 2)) for i, y in enumerate(expected)]
        for out, capture in (([turned], False), ([turned], False), (alike, False), (alike, True)):
            given = tree if out is alike else [tree[6].reshape(10, 30)]
            flag = upload(np.ones((), bool))
            driver.launched.clear()
            driver.capture = capture
            if capture:
                # There is a plan, so that arrays are not checked one by one again.
                monkeypatch.setattr(batch_items, "checked", None)
            assert scale.unscale(given, to=to, norm=there, out=out, finite=flag)[0] is out
            driver.capture = False
            monkeypatch.undo()
            assert len(driver.launched) == (2 if out is alike else 3)
            if out is alike:
                assert [download(y).tobytes() for y in out] == [y.tobytes() for y in expected]
                assert (download(there).tobytes(), bool(download(flag))) == (norm.tobytes(), bool(finite))
        assert download(turned).tobytes() == expected[6].reshape(10, 30).tobytes()
        # In place, and a single array.
        one = upload(grads[3])
        scale.unscale([one], norm=there, out=[one], to=one.dtype)
        assert download(one).tobytes() == gpucast.cast(grads[3], one.dtype, scale=float(np.float32(1e-3))).tobytes()


def test_the_largest_norm_is_rounded_once() -> None:
    # As DOUBLEs these are midway between two FLOATs.
    for more, wanted in ((0, 2**60), (1, 2**60 + 2**37)):
        clipped, _ = NoOpLossScale().unscale([np.float32([2.0**70])], clip=2**60 + 2**36 + more)
        assert clipped[0] == wanted


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_clipped_where_the_norm_is_not_finite(bad: float) -> None:
    grads, norm = [np.float32([3, bad]), np.float16([4])], np.zeros((), np.float32)
    results, finite = NoOpLossScale().unscale(grads, norm=norm, clip=1e-3)
    assert (bool(finite), results[1].tolist()) == (False, [4.0])
    np.testing.assert_equal(norm, np.float32(bad))
    # Squares of FLOATs do not overflow: the norm does, and only as FLOAT.
    large, finite = NoOpLossScale().unscale([np.full(4, 3e38, np.float32)], norm=norm, clip=2.0)
    assert bool(finite)
    assert math.isinf(norm)
    assert np.allclose(large[0], 1)
    # Squares of DOUBLEs may overflow, while all elements are finite: on both sides nothing is clipped then.
    huge = np.full(3, 1e200)
    with installed(HostDriver(1)):
        for given, there in ((huge, norm), (upload(huge), upload(norm))):
            results, finite = NoOpLossScale().unscale([given], to="DOUBLE", norm=there, clip=1.0)
            on_host = [x if isinstance(x, np.ndarray) else download(x) for x in (results[0], there, finite)]
            assert [x.tolist() for x in on_host] == [huge.tolist(), math.inf, True]


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"clip": 0}, ValueError, "unscale: clip=0 must be above 0"),
        ({"clip": math.nan}, ValueError, "clip=nan must be above 0"),
        ({"clip": -(10**400)}, ValueError, "clip=-10+ must be above 0"),
        ({"clip": "1"}, TypeError, "clip='1' must be a number"),
        ({"norm": np.zeros((), np.float64)}, TypeError, "norm has dtype float64; expected FLOAT"),
        ({"norm": np.zeros(2, np.float32)}, ValueError, r"norm has shape \(2,\); expected one element"),
    ],
)
def test_bad_use(keywords: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        NoOpLossScale().unscale([np.ones(3)], **keywords)
    with pytest.raises(ValueError, match="grads has no arrays"):
        NoOpLossScale().unscale([3], norm=np.zeros(1, np.float32))


def test_arrays_on_several_devices_are_refused_by_path_before_any_kernel_runs() -> None:
    with installed(HostDriver(2)) as driver:
        here, there = (upload(np.ones(3, np.float32), device) for device in (0, 1))
        host, norm = np.ones(3, np.float32), upload(np.zeros(1, np.float32))
        for grads, words in (
            ({"a": here, "b": host}, r"unscale: grads\['b'\] is on the host; the first array is on cuda:0"),
            ({"a": here, "b": there}, r"unscale: grads\['b'\] is on cuda:1; the first array is on cuda:0"),
            ({"a": host, "b": here}, r"unscale: grads\['b'\] is on cuda:0; the first array is on the host"),
        ):
            with pytest.raises(ValueError, match=words):
                StaticLossScale(4.0).unscale(grads, norm=None if grads["a"] is host else norm, clip=1.0)
        assert driver.launched == []


@pytest.mark.parametrize("on_device", [False, True])
def test_nothing_is_written_after_an_error(on_device: bool) -> None:
    place = upload if on_device else np.asarray
    scale, grads = StaticLossScale(4.0), [place(np.full(3, i, np.float32)) for i in (1, 2)]
    norm, finite = place(np.full(1, 7, np.float32)), place(np.ones((), bool))
    few, enough = place(np.ones(2, np.float32)), place(np.ones(3, np.float32))
    flag = np.ones((), bool) if on_device else np.ones(2, bool)
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"to": "float7"}, TypeError, "unscale: to="),
        ({"to": "STRING"}, ValueError, "does not apply to text"),
        ({"out": [enough, few]}, ValueError, r"unscale: grads\[1\]: out has shape"),
        ({"out": [enough, enough]}, ValueError, "share memory"),
        ({"out": [enough, grads[0]]}, ValueError, "overlaps"),
        ({"finite": flag}, ValueError, "unscale: finite "),
    ]
    with installed(HostDriver(1)) as driver:
        for _ in range(2):
            driver.launched.clear()
            for keywords, error, words in bad:
                with pytest.raises(error, match=words):
                    scale.unscale(grads, norm=norm, clip=1.0, **{"finite": finite, **keywords})
            read = download(norm) if on_device else norm
            assert (read.tolist(), driver.launched) == ([7], [])
            # Devices have plans for calls like this one.
            scale.unscale(grads, clip=1.0, finite=finite, out=[place(np.zeros(3, np.float32)) for _ in grads])


@pytest.mark.parametrize("on_device", [False, True])
def test_the_norm_shares_memory_with_no_other_array(on_device: bool) -> None:
    place = upload if on_device else np.asarray
    x, y, out, flat = (place(np.float32([3, 4, 0])) for _ in range(4))
    scale, flag = DynamicLossScale(2.0), flat.view(np.uint8)[:1]
    with installed(HostDriver(1)) as driver:
        for _ in range(2):
            # Devices have a plan after this call.
            scale.unscale([x, y], out=[x, out], finite=place(np.ones((), bool)))
            driver.launched.clear()
            for norm, words in (
                (x[1:2], r"unscale: out\[0\] and norm share memory"),
                (y[:1], r"unscale: norm overlaps grads\[1\]"),
                (out[2:], r"unscale: out\[1\] and norm share memory"),
                (flat[:1], "unscale: (norm and finite|finite and norm) share memory"),
            ):
                with pytest.raises(ValueError, match=words):
                    scale.unscale([x, y], out=[x, out], finite=flag, norm=norm)
            assert driver.launched == []


@pytest.mark.parametrize("code", [0xFFC00001, 0x7FFFFFFF, 0x7F800001])
def test_a_norm_that_is_nan_has_the_bits_of_every_other_cast(code: int) -> None:
    x = np.array([0x3F800000, code], np.uint32).view(np.float32)
    norm = np.zeros(1, np.float32)
    NoOpLossScale().unscale([x], norm=norm)
    with installed(HostDriver(1)):
        there = upload(np.zeros(1, np.float32))
        NoOpLossScale().unscale([upload(x)], norm=there)
        assert norm.view(np.uint32) == download(there).view(np.uint32) == 0x7FC00000


class Spy(HostDriver):
    """Notes where the kernel of the norm reads the sums and writes the factor."""

    def __init__(self) -> None:
        super().__init__(1)
        self.places: list[tuple[int, int]] = []

    def load(self, source: KernelSource) -> Any:
        run = super().load(source)

        def launch(src: int, dst: int, n: int, more: Any) -> None:
            if source.name == "gpucast_norm":
                self.places.append((src, dst))
            run(src, dst, n, more)

        return launch


def workspaces() -> int:
    gc.collect()
    return sum(isinstance(one, Workspace) for one in gc.get_objects())


def test_streams_share_no_memory_between_the_norm_and_the_cast() -> None:
    with installed(Spy()) as driver:
        scale, grads = StaticLossScale(4.0), [upload(np.ones(9000, np.float32))]
        out, finite = [upload(np.zeros(9000, np.float32))], upload(np.ones((), bool))

        def places(stream: int, capture: bool = False) -> set[int]:
            with driver.using(stream, 0):
                driver.capture = capture
                scale.unscale(grads, clip=1.0, finite=finite, out=out)
                driver.capture = False
            return set(driver.places.pop())

        first, second = places(1), places(2)
        assert not first & second
        assert (places(1), places(2)) == (first, second)
        # Libraries capture on a stream of their own, where nothing may be allocated: the graph keeps the memory.
        assert places(3, capture=True) == second
        assert places(3, capture=True) == second
        assert places(4, capture=True) == first
        assert not places(2) & (first | second)
        places(2, capture=True)
        # Graphs have taken all of it.
        with pytest.raises(RuntimeError, match="memory cannot be allocated"):
            places(5, capture=True)
        # Of the streams that no graph has, the last ones keep their memory.
        before = workspaces()
        for stream in range(6, 40):
            places(stream)
        assert workspaces() <= before + 8
        assert places(3, capture=True) == second


def test_a_graph_takes_the_memory_of_many_lists() -> None:
    with installed(HostDriver(1)) as driver:
        scale, finite = StaticLossScale(4.0), upload(np.ones((), bool))
        # Parameter groups, all with other numbers of sums.
        lists = [[upload(np.ones(8192 * i, np.float32))] for i in range(1, 12)]

        def step() -> None:
            for grads in lists:
                scale.unscale(grads, clip=1.0, finite=finite, out=grads)

        def capture(stream: int) -> None:
            with driver.using(stream, 0):
                driver.capture = True
                try:
                    step()
                finally:
                    driver.capture = False

        step()
        capture(1)
        with pytest.raises(RuntimeError, match="memory cannot be allocated"):
            capture(2)
        # A capture that failed leaves nothing behind.
        step()
        capture(2)
