# SPDX-License-Identifier: Apache-2.0
"""Expected bits of casts, and a runner that compares a library with them: ``python -m cast_conformance torch``.

`read` and `manifest` need nothing but Python. The runner needs NumPy.
"""

from cast_conformance.reader import TABLES, manifest, read

__all__ = ["TABLES", "manifest", "read"]
