# SPDX-License-Identifier: Apache-2.0
"""One cast of an array of each library on the GPU, compared with the host: ``python -m bench.gpu.libraries``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import gpucast

X = np.linspace(-500, 500, 1001, dtype=np.float32)


def _torch(torch: Any) -> Any:
    return gpucast.cast(torch.from_numpy(X).cuda(), "FLOAT16").cpu().numpy()


#: What casts X on the GPU and brings it back, by the library, which it gets.
LIBRARIES: Mapping[str, Callable[[Any], Any]] = {
    "cupy": lambda cupy: gpucast.cast(cupy.asarray(X), "FLOAT16").get(),
    "torch": _torch,
    "jax": lambda jax: np.asarray(gpucast.cast(jax.device_put(X, jax.devices("gpu")[0]), "FLOAT16")),
}


def check(name: str) -> str:
    """The outcome for a library, in words; "wrong: " stands before one that is wrong."""
    try:
        library = importlib.import_module(name)
    except ImportError:
        return "not installed"
    try:
        found = LIBRARIES[name](library)
    except Exception as error:  # The other libraries are tried too.
        return f"wrong: {type(error).__name__}: {error}"
    return "right" if found.tobytes() == gpucast.cast(X, "FLOAT16").tobytes() else "wrong: other bits than on the host"


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m bench.gpu.libraries", description=__doc__).parse_args(argv)
    outcomes = {name: check(name) for name in LIBRARIES}
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    return int(any(outcome.startswith("wrong") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
