# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from functools import lru_cache

import pytest

from bench.static import catalog
from gpucast.kernel.kernel import Kernel
from gpucast.warmup import calls

#: The list of all kernels takes half a minute to make. In the usual run it is that of some pairs, those of FLOAT and
#: one in so many others, of one in so many formats with their rules, and of a format of each further kind of kernel.
_PAIRS, _FORMATS = 7, 12
_OF_A_KIND = ("nvfp4", "nvfp4_4over6", "te-nvfp4", "float8e4m3fn_128x128", "float8e4m3fn_axis", "int4_zp_32")
_EVERY = catalog._listed.__wrapped__


def _some() -> list[Kernel]:
    pairs = [pair for i, pair in enumerate(calls.every_pair()) if i % _PAIRS == 0 or pair[0].name == "FLOAT"]
    formats = [*_OF_A_KIND, *list(catalog._formats())[::_FORMATS]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "every_pair", lambda: pairs)
        patch.setattr(catalog, "_formats", lambda: iter(formats))
        return _EVERY()


@pytest.fixture(scope="session", autouse=True)
def one_list_of_kernels(exhaustive: bool) -> None:
    """The processes of a run share it."""
    try:
        import built_kernels
    except ImportError:
        return
    name, make = ("all kernels", _EVERY) if exhaustive else (f"some kernels: {_PAIRS}, {_FORMATS}, {_OF_A_KIND}", _some)
    catalog._listed = lru_cache(maxsize=1)(lambda: built_kernels.shared(name, make))
