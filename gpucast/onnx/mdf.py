# SPDX-License-Identifier: Apache-2.0
"""MDF graphs (modeci_mdf) whose ``onnx::Cast`` is gpucast's: every type, every value, `saturate` and `round_mode`.

    from gpucast.interop import mdf

    with mdf.installed():  # or mdf.install() ... mdf.uninstall()
        EvaluableGraph(load_mdf("model.json").graphs[0]).evaluate(initializer={"x": x})

It replaces two attributes of ``modeci_mdf.functions.onnx``: `cast`, which the execution engine looks up whenever it
evaluates a Cast, and `get_onnx_schema`, which returns the newest Cast schema, because with the package's own, of opset
13, the engine would drop `saturate` and `round_mode`. The schemas of all other operators stay those of the package.

The rest of the engine is unchanged: it widens float32 results to float64, and an argument must not be a bare text, so
that `round_mode` is written ``"numpy.array('down')"`` in a graph file.

Source: ``execution_engine.evaluate_onnx_expr`` of modeci_mdf 0.4.15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpucast.arrays.packed import device_index
from gpucast.casting import cast as casting
from gpucast.core.dtypes import dtype

try:
    import modeci_mdf.functions.onnx as onnx_ops
    import onnx.defs
except ImportError as error:
    raise ImportError(
        f"gpucast.interop.mdf needs the modeci_mdf package ({error}): pip install modeci-mdf, "
        "or pip install 'gpucast[mdf]'"
    ) from error

__all__ = ["install", "installed", "uninstall"]

#: The package's own `cast` and `get_onnx_schema` while ours are installed, else None.
_originals: tuple[Any, Any] | None = None


def install(device: str | None = None) -> None:
    """Make the ``onnx::Cast`` of MDF graphs run on gpucast, by the newest rules, until `uninstall`.

    `device`: where to cast host arrays: None or "cpu", or "cuda" / "cuda:N"; the results return to the host. Arrays on
    a device are cast there and stay there. Installing again only changes the device. TypeError or ValueError for an
    unknown device, DeviceUnavailable for one that cannot be used.
    """
    global _originals  # noqa: PLW0603 (the state of another module is what is kept)
    if "round_mode" not in onnx.defs.get_schema("Cast").attributes:
        raise ImportError(f"mdf.install: onnx {onnx.__version__} does not know round_mode; expected 1.19 or newer")
    # A trial cast shows whether driver, libraries and compiler work together.
    casting.cast(np.zeros(1, np.float32), "FLOAT16", device=device)
    if _originals is None:
        _originals = onnx_ops.cast, onnx_ops.get_onnx_schema
    onnx_ops.cast, onnx_ops.get_onnx_schema = _cast_function(device), _Schemas(_originals[1])


def uninstall() -> None:
    """Put the package's own functions back. Does nothing where nothing is installed."""
    global _originals  # noqa: PLW0603
    if _originals is not None:
        onnx_ops.cast, onnx_ops.get_onnx_schema = _originals
        _originals = None


@contextlib.contextmanager
def installed(device: str | None = None) -> Iterator[None]:
    """`install` for a ``with`` block; afterwards the previous state is restored, even an earlier install."""
    global _originals
    before = _originals, onnx_ops.cast, onnx_ops.get_onnx_schema
    install(device)
    try:
        yield
    finally:
        _originals, onnx_ops.cast, onnx_ops.get_onnx_schema = before


def _cast_function(device: str | None) -> Callable[..., Any]:
    def cast(input: Any, to: Any, saturate: Any = 1, round_mode: Any = "up") -> Any:
        """The operator Cast of the newest opset, on gpucast (see gpucast.interop.mdf)."""
        # The package's own function turns Python numbers into vectors, and graphs rely on that shape.
        x = np.atleast_1d(input) if type(input) in (int, float) else input
        dst = dtype(to, caller="onnx::Cast: to=")
        # ONNX has no boolean attributes: 0 is false, any other integer true. Text stays on the host.
        y = casting.cast(
            x,
            dst,
            saturate=saturate != 0 if isinstance(saturate, (int, np.integer)) else saturate,
            round_mode=round_mode,
            device=None if dst.family == "string" or device_index(x) is not None else device,
        )
        return y if device_index(y) is None or device_index(x) is not None else y.get()

    return cast


class _Schemas:
    """``get_onnx_schema`` with the newest Cast, because the engine passes only attributes that the schema names."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(self, func_name: str, *args: Any, **kwargs: Any) -> Any:
        return onnx.defs.get_schema("Cast") if func_name == "cast" else self._original(func_name, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # The package's own is a cached function, with attributes such as cache_clear.
        return getattr(self._original, name)
