# SPDX-License-Identifier: Apache-2.0
"""DelayedScales: the codes and scales of gpucast.mixed.DelayedScaling, by pure functions within jax.jit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.mixed import DelayedScaling

jax = pytest.importorskip("jax")
from gpucast.mixed.jax_scaling import DelayedScales  # noqa: E402


def test_a_step_within_jit_is_that_of_the_object() -> None:
    rng = np.random.default_rng(0)
    for to, settings in (("FLOAT8E4M3FN", {}), ("FLOAT16", {"margin": 64, "power_of_two": True})):

        @jax.jit
        def step(scales: Any, x: Any, y: Any, to: str = to, settings: Any = settings) -> Any:
            first, scales = scales.cast(x, to, 0)
            second, scales = scales.cast(y, to, 1)
            return first, second, scales.update(to, **settings)

        pure, kept = DelayedScales.start(2, history=3), DelayedScaling(to, tensors=2, history=3, **settings)
        for i in range(10):
            x = (rng.standard_normal(100) * 10.0 ** rng.integers(-36, 30)).astype(np.float32)
            y = gpucast.cast(rng.standard_normal(7), "BFLOAT16")
            if i == 5:
                x[3], y[2] = np.nan, np.inf
            first, second, pure = step(pure, jax.numpy.asarray(x), jax.numpy.asarray(y))
            pairs = (first, kept.cast(x, 0)), (second, kept.cast(y, 1)), (pure.amax, np.zeros(2, np.float32))
            kept.update()
            for got, expected in (*pairs, (pure.scale, kept.scale), (pure.inverse, kept.inverse)):
                assert np.asarray(got).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("INT32", [0xFFFFFFFF, 5]),
        ("UINT8", [200, 7]),
        ("BOOL", [0, 1]),
        ("INT4", [8, 7]),
        ("FLOAT8E4M3FNUZ", [0x80, 0x40]),
        ("FLOAT8E5M2FNUZ", [0x80, 0x40]),
        ("FLOAT8E8M0", [100, 130]),
        ("FLOAT4E2M1", [0xE, 1]),
        # A quiet NaN with a sign and a payload.
        ("FLOAT", [0xFFC00001, 0x3F800000]),
    ],
)
def test_magnitudes_of_other_types_are_those_of_the_object(name: str, codes: list[int]) -> None:
    kind = gpucast.dtype(name)
    x = np.array(codes, kind.code_numpy).view(kind.numpy)
    kept = DelayedScaling("FLOAT8E4M3FN")
    expected = kept.cast(x)
    step = jax.jit(lambda scales, x: scales.cast(x, "FLOAT8E4M3FN"))
    got, scales = step(DelayedScales.start(), jax.numpy.asarray(x))
    assert np.asarray(got).tobytes() == expected.tobytes()
    assert np.asarray(scales.amax).tobytes() == kept.amax.tobytes()


def test_a_numpy_array_of_double_is_measured_without_64_bits_in_jax() -> None:
    assert DelayedScales.start().cast(np.array([1.5, -3], np.float64), "FLOAT8E4M3FN")[1].amax.tolist() == [3]


def test_gradients_and_small_numbers() -> None:
    scales = DelayedScales.start()._replace(scale=jax.numpy.float32([2.0]))
    slope = jax.grad(lambda x: scales.cast(x, "FLOAT8E4M3FN")[0].astype("float32").sum())(jax.numpy.ones(3))
    assert slope.tolist() == [2, 2, 2]
    # A subnormal magnitude counts, and its scale stops where the inverse is still a normal number.
    _, scales = DelayedScales.start().cast(jax.numpy.float32([1e-45]), "FLOAT8E4M3FN")
    scales = jax.jit(lambda one: one.update("FLOAT8E4M3FN"))(scales)
    assert (scales.scale.tolist(), scales.inverse.tolist()) == ([2.0**126], [2.0**-126])
    with pytest.raises(ValueError, match="history=0 must be from 1"):
        DelayedScales.start(history=0)


@pytest.mark.parametrize(
    ("tensor", "error", "words"),
    [
        (5, IndexError, r"DelayedScales\.cast: tensor=5 must be from 0 to 1"),
        (-1, IndexError, "tensor=-1 must be from 0 to 1"),
        (True, TypeError, "tensor=True must be an integer"),
    ],
)
def test_a_tensor_without_a_scale_is_refused(tensor: Any, error: type[Exception], words: str) -> None:
    scales, x = DelayedScales.start(2), jax.numpy.ones(3)
    for cast in (scales.cast, jax.jit(scales.cast, static_argnums=(1, 2))):
        with pytest.raises(error, match=words):
            cast(x, "FLOAT16", tensor)
    # One whose value only the compiled function knows is no error.
    jax.jit(scales.cast, static_argnums=1)(x, "FLOAT16", 1)
