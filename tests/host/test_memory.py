# SPDX-License-Identifier: Apache-2.0
"""Memory of large results: the next one takes it, some is kept at most, and a program may choose another allocator."""

from __future__ import annotations

import sys

import pytest

from gpucast.core.extension import MODULE
from test_fallback import run

pytestmark = pytest.mark.skipif(
    MODULE is None or sys.platform != "linux", reason="needs the extension module, and Linux's large pages"
)

PRELUDE = """
import ctypes, resource
from pathlib import Path
import numpy as np
import gpucast
MIB = 1 << 20
# Counted page by page: the numbers of "statm" lag behind, by more on machines with more cores.
def resident(): return said("smaps_rollup", "Rss")
def said(file, name): return int(Path("/proc/self", file).read_text().partition(name + ":")[2].split()[0]) << 10
def cast(mib): return gpucast.cast(np.ones(mib * MIB, np.int8), "UINT8")
def memory(y): return np._core.multiarray.get_handler_name(y)
# The first call makes the plan.
cast(1)
"""
KEPT = """
y, z = cast(17), cast(17)
first = y.ctypes.data
assert memory(y) == "gpucast" and y.flags.owndata and first % (2 * MIB) == 0 and not np.may_share_memory(y, z)
# A result in less than half of what is there would waste it.
del y
assert cast(4).ctypes.data != first and cast(16).ctypes.data == first
y = cast(17)
assert y.ctypes.data == first and y.all() and z.all()
y[-1] = 7
y.resize(50 * MIB, refcheck=False)
assert y[17 * MIB - 1] == 7 and y[: 17 * MIB - 1].all() and not y[17 * MIB :].any()
y.resize(5, refcheck=False)
assert y.tolist() == [1] * 5
y.resize(9, refcheck=False)
y.resize(20 * MIB, refcheck=False)
assert y[:5].all() and not y[5:].any()
# What becomes small takes no pages of its own.
before, many = said("status", "VmSize"), []
for _ in range(200):
    y = cast(4)
    y.resize(3, refcheck=False)
    many.append(y)
assert said("status", "VmSize") - before < 100 * MIB
assert memory(y + y) == memory(cast(3)) == "default_allocator"
print("done")
"""
LIMITS = """
before = resident()
many = [cast(10) for _ in range(30)]
assert 300 * MIB <= resident() - before < 330 * MIB
del many
assert resident() - before < 120 * MIB
# The system may take all but the last ones.
assert said("smaps_rollup", "LazyFree") >= 60 * MIB
# What is kept goes where memory is short.
x = np.ones(150 * MIB, np.int8)
limit = said("status", "VmData") + 100 * MIB
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
assert gpucast.cast(x, "UINT8").all()
try:
    gpucast.cast(x, "INT32")
except MemoryError:
    pass
else:
    raise AssertionError
assert gpucast.cast(x, "UINT8").all()
print("done")
"""
# Others get what is given back: nothing is kept where a limit would count it.
LIMITED = """
for limit, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
    many = [cast(16) for _ in range(7)]
    del many[:3]
    resource.setrlimit(limit, (said("status", name) + 30 * MIB, -1))
    del many
    assert np.empty(110 * MIB, np.uint8).size
    resource.setrlimit(limit, (-1, -1))
print("done")
"""
CHOSEN = """
# NumPy's own functions by another name.
names, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
names.restype, names.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
api = ctypes.cast(names(np._core.multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
default = ctypes.cast(api[306], ctypes.POINTER(ctypes.py_object)).contents.value
own = ctypes.create_string_buffer(ctypes.string_at(names(default, b"mem_handler"), 128 + 5 * 8))
own[:7] = b"chosen\\0"
choose = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(api[304])
choose(new(ctypes.addressof(own), b"mem_handler", None))
y = cast(9)
assert memory(y) == "chosen" and y.all()
choose(default)
assert memory(cast(9)) == "gpucast"
print("done")
"""


@pytest.mark.parametrize("code", [KEPT, LIMITS, LIMITED, CHOSEN], ids=["kept", "limits", "limited", "chosen"])
def test_memory_of_large_results(code: str) -> None:
    assert run(PRELUDE + code) == ["done"]
