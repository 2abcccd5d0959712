# SPDX-License-Identifier: Apache-2.0
"""The table of types, under its public name; it is `gpucast.core.dtypes`.

Pickles name `_row` here: what was pickled before the table moved can be read, and the other way round.
"""

from gpucast.core import packages
from gpucast.core.dtypes import DTYPES, DType, FInfo, IInfo, Lookup, dtype, finfo, iinfo
from gpucast.core.dtypes.lookup import _row

__all__ = ["DTYPES", "DType", "FInfo", "IInfo", "Lookup", "_row", "dtype", "finfo", "iinfo"]

packages.publish(globals())
