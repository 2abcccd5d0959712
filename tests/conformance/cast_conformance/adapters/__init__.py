# SPDX-License-Identifier: Apache-2.0
"""One module for each library. A module has

- ``version()``: what was measured, as text;
- ``cast(codes, src, dst, mode)``: the library's cast of an array of codes (unsigned, one a byte below 8 bits) from the
  type named `src` to the one named `dst`, as codes. What the library lacks raises; `Refused` says why;
- ``MODES``, optional: names of conventions that the library can be asked for, one of which is `mode`. Without it
  `mode` is "" and every convention counts as right;
- ``LINES``, optional: three lines that reproduce a case, with places for its code and for the types: {code}, {src},
  {dst}, and {uint}, {dst_uint} for the unsigned types of the codes. ``NAMES`` has the library's names of the types, if
  they are not those of NumPy and ml_dtypes;
- ``BLOCKS`` and ``quantize(x, name)`` instead of `cast`, or beside it: names of block formats, and the library's
  quantization of a FLOAT matrix. It gives the numbers of elements and of scales, and the global scale (1 where there
  is none); or one array of the numbers that come back.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from types import ModuleType


class Refused(Exception):
    """The library does not have this cast."""


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    """The adapter of a name, or that in a file ``.py``."""
    if not name.endswith(".py"):
        return importlib.import_module(f"{__name__}.{name}")
    spec = importlib.util.spec_from_file_location("adapter", name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
