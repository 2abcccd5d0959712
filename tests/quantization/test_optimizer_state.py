# SPDX-License-Identifier: Apache-2.0
"""8-bit states of optimizers: on the host and by the kernels, beside a model by nearest numbers and beside torchao."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpucast.quantization import dequantize_state, quantize_state
from gpucast.quantization.gpu.state_on_gpu import in_order
from gpucast.quantization.states.codebooks import find
from gpucast.quantization.states.step import dequantizing, quantizing
from host_driver import DEVICES, HostDriver, device_array, download, installed, on_gpu, upload

Array = np.ndarray[Any, Any]
BOOKS = ("torchao-dynamic8", "torchao-dynamic8-unsigned")


def hard(book: str, blocks: int, seed: int = 0) -> Array:
    """Blocks of FLOATs: of all magnitudes, at and beside the limits between codes, zeros, subnormals, and the rest."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((blocks, 256)) * 10.0 ** rng.integers(-9, 3, (blocks, 256))).astype(np.float32)
    limits = np.resize(find(book, "test").limits, 256)
    x[::4] = limits.view(np.int32)[rng.permuted(np.tile(np.arange(256), (len(x[::4]), 1)), axis=1)].view(np.float32)
    x[::4].view(np.int32)[...] += rng.integers(-1, 2, x[::4].shape, np.int32)
    x[::4, 7] = 1
    x[1::4] *= np.float32(2) ** rng.integers(-140, 100, len(x[1::4]))[:, None].astype(np.float32)
    x[2], x[3, 5], x[6, 3], x[6, 4], x[7, :5] = 0, np.nan, np.inf, -np.inf, -0.0
    x[10] = np.float32(1e-13)
    return x


def model(x: Array, book: str) -> tuple[Array, Array]:
    """By torchao's text: eight comparisons with the numbers, then the nearer neighbour."""
    numbers, blocks = find(book, "test").numbers, x.reshape(-1, 256)
    with np.errstate(all="ignore"):
        scales = np.maximum(np.abs(blocks).max(1), np.float32(1e-12))
        share = (blocks / scales[:, None]).reshape(x.shape)
        low = np.maximum((share[..., None] >= numbers).sum(-1) - 1, 0)
        high = np.minimum(low + 1, 255)
        up = share - numbers[low] >= (numbers[high] - numbers[low]) * np.float32(0.5)
    return np.where(up, high, low).astype(np.uint8), scales


def same(x: Array, y: Array) -> bool:
    return bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f"))


@pytest.fixture(scope="module", params=DEVICES)
def place(request: pytest.FixtureRequest) -> Iterator[HostDriver | None]:
    """The driver that stands in for CUDA's; None on a GPU."""
    if request.param == "gpu":
        with on_gpu():
            yield None
        return
    driver = HostDriver()
    driver.prepare([in_order(step(book)).source() for step in (quantizing, dequantizing) for book in BOOKS])
    yield driver


@pytest.mark.parametrize("book", BOOKS)
def test_host_and_kernels_have_the_bits_of_the_model(book: str, place: HostDriver | None) -> None:
    x = hard(book, 1003)
    codes, scales = quantize_state(x, book)
    expected = model(x, book)
    assert codes.dtype == np.uint8 and same(codes, expected[0]) and same(scales, expected[1])
    with np.errstate(all="ignore"):
        numbers = find(book, "test").numbers[codes] * scales[:, None]
    back = dequantize_state(codes, scales, book)
    assert same(back, numbers) and set(back.view(np.uint32)[np.isnan(back)]) == {0x7FC00000}
    with contextlib.nullcontext() if place is None else installed(place):
        on_device = quantize_state(upload(x), book)
        assert [download(part).tobytes() for part in on_device] == [codes.tobytes(), scales.tobytes()]
        assert download(dequantize_state(*on_device, book)).tobytes() == back.tobytes()
        # Elements that are not aligned for vectors, and memory that is used again.
        again = upload(np.resize(x, x.size + 1))[1:257].reshape(1, 256)
        out = upload(np.empty(257, np.uint8))[1:].reshape(1, 256), upload(np.empty(1, np.float32))
        before = 0 if place is None else len(place.launched)
        assert quantize_state(again, book, out=out) is out
        assert place is None or len(place.launched) == before + 1
        assert same(download(out[0]), quantize_state(download(again), book)[0])
        # Every second element, which is copied first.
        found = quantize_state(upload(np.repeat(x, 2, axis=1))[:, ::2], book)
        assert [download(part).tobytes() for part in found] == [codes.tobytes(), scales.tobytes()]


def test_every_code_is_that_of_its_number() -> None:
    for book in BOOKS:
        found = find(book, "test")
        assert (np.diff(found.numbers) > 0).all() and (np.diff(found.limits) > 0).all()
        # The largest number is 1, so that of each block.
        assert same(quantize_state(found.numbers, book)[0], np.arange(256, dtype=np.uint8))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: quantize_state(x, "dynamic"), ValueError, "codebook='dynamic' must be"),
        (lambda x: quantize_state(x[:100]), ValueError, "100 elements are no multiple of 256"),
        (lambda x: quantize_state(x.astype(np.float64)), TypeError, "x has dtype float64; expected FLOAT"),
        (lambda x: quantize_state(x, out=x), TypeError, "must be a pair"),
        (lambda x: quantize_state(x, out=(np.empty(4, np.uint8), x[:2])), ValueError, r"codes has shape \(4,\)"),
        (
            lambda x: quantize_state(x, out=(np.empty(512, np.uint8), x[:2])),
            ValueError,
            "scales shares memory with x",
        ),
        # Memory of an array with gaps, which is copied.
        (
            lambda x: quantize_state(x[::2], out=(np.empty(256, np.uint8), x[:1])),
            ValueError,
            "scales shares memory with x",
        ),
        (
            lambda x: quantize_state(x, out=(np.empty(1024, np.uint8)[::2], np.empty(2, np.float32))),
            ValueError,
            "codes is not contiguous",
        ),
        (lambda x: dequantize_state(np.zeros(512, np.uint8), x[:2], out=list(x)), TypeError, "out is list; expected"),
        (lambda x: dequantize_state(np.zeros(512, np.uint8), x[:1]), ValueError, r"scales has shape \(1,\)"),
        (lambda x: dequantize_state(x, x[:2]), TypeError, "codes has dtype float32; expected UINT8"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(np.ones(512, np.float32))


def test_bad_input_on_a_device(place: HostDriver | None) -> None:
    x, scales = upload(np.ones(256, np.float32)), upload(np.ones(1, np.float32))
    shifted = device_array((1,), np.float32, offset=1)
    with contextlib.nullcontext() if place is None else installed(place):
        for call, words in (
            (lambda: quantize_state(x, out=(np.empty(256, np.uint8), scales)), "codes is on cpu; expected cuda:0"),
            (lambda: quantize_state(x, out=(quantize_state(x)[0], shifted)), "address of scales is no multiple of 4"),
            (lambda: dequantize_state(quantize_state(x)[0], np.ones(1, np.float32)), "are not in one place"),
        ):
            with pytest.raises(ValueError, match=words):
                call()


def test_no_elements() -> None:
    codes, scales = quantize_state(np.zeros((0, 3), np.float32))
    assert codes.shape == (0, 3) and scales.shape == (0,) and dequantize_state(codes, scales).shape == (0, 3)


@pytest.mark.peers
@pytest.mark.parametrize("book", BOOKS)
def test_torchao_has_these_bits(book: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    library = pytest.importorskip("torchao.optim.quant_utils", reason="torchao is not installed")
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("PyTorch's table differs without AVX2; test_host_and_kernels_have_the_bits_of_the_model runs")
    table = torch.tensor(library.create_dynamic_map(book == BOOKS[0]))
    assert same(table.numpy(), find(book, "test").numbers)
    x = torch.from_numpy(hard(book, 4096, seed=1))
    shares, scales = library.scale_tensor(x, 256)
    codes = library.quantize_8bit_with_qmap(shares, table)
    ours = quantize_state(x, book)
    assert torch.equal(ours[0], codes) and same(ours[1].numpy(), scales.numpy())
    back = library.dequant_with_qmap(codes, table, scales)
    assert same(dequantize_state(*ours, book).numpy(), back.numpy())
