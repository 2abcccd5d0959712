# SPDX-License-Identifier: Apache-2.0
"""The dtypes: the table, the lookup of a row by any name, and limits."""

from gpucast.core.dtypes.lookup import FOREIGN, FInfo, IInfo, Lookup, dtype, finfo, iinfo, is_foreign
from gpucast.core.dtypes.table import DTYPES, DType

__all__ = ["DTYPES", "FOREIGN", "DType", "FInfo", "IInfo", "Lookup", "dtype", "finfo", "iinfo", "is_foreign"]
