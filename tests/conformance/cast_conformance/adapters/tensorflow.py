# SPDX-License-Identifier: Apache-2.0
"""TensorFlow on the CPU: ``tf.cast``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from cast_conformance.arrays import array_of, codes_of, numpy_dtype

LINES = """import numpy as np, ml_dtypes, tensorflow as tf
x = np.array([{code}], np.{uint}).view("{src}")
print(hex(tf.cast(x, "{dst}").numpy().view(np.{dst_uint})[0]))"""


def version() -> str:
    return f"TensorFlow {tf.__version__}, CPU"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    with tf.device("/CPU:0"):
        return codes_of(tf.cast(tf.constant(array_of(codes, src)), numpy_dtype(dst)).numpy(), dst)
