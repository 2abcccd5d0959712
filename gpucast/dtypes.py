# SPDX-License-Identifier: Apache-2.0
"""The table of types, under its public name; it is `gpucast.core.dtypes`."""

from gpucast.core import packages
from gpucast.core.dtypes import DTYPES, DType, FInfo, IInfo, Lookup, dtype, finfo, iinfo

__all__ = ["DTYPES", "DType", "FInfo", "IInfo", "Lookup", "dtype", "finfo", "iinfo"]

packages.publish(globals())
