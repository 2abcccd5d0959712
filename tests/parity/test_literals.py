# SPDX-License-Identifier: Apache-2.0
"""What casts give, to be read: values and the codes that they become, a dozen lines for each type.

`test_matrix.py` goes through all else, and has its right codes from arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import gpucast
from engines import by_kernels, by_module, by_reference
from gpucast.core.dtypes import DTYPES, dtype
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.parity import host_build

#: Integers: toward zero, then the low bits. NaN and infinities give 0.
INTEGERS = """
 value INT2 UINT2 INT4 UINT4 INT8 UINT8 INT16 UINT16       INT32     UINT32                INT64               UINT64
     0    0     0    0     0    0     0     0      0           0          0                    0                    0
   0.9    0     0    0     0    0     0     0      0           0          0                    0                    0
  -0.9    0     0    0     0    0     0     0      0           0          0                    0                    0
   1.5    1     1    1     1    1     1     1      1           1          1                    1                    1
  -1.5   -1     3   -1    15   -1   255    -1  65535          -1 4294967295                   -1 18446744073709551615
     2   -2     2    2     2    2     2     2      2           2          2                    2                    2
     9    1     1   -7     9    9     9     9      9           9          9                    9                    9
   200    0     0   -8     8  -56   200   200    200         200        200                  200                  200
  -129   -1     3   -1    15  127   127  -129  65407        -129 4294967167                 -129 18446744073709551487
 70000    0     0    0     0  112   112  4464   4464       70000      70000                70000                70000
  1e10    0     0    0     0    0     0 -7168  58368  1410065408 1410065408          10000000000          10000000000
  1e19    0     0    0     0    0     0     0      0 -1981284352 2313682944 -8446744073709551616 10000000000000000000
  2e20    0     0    0     0    0     0     0      0  -970981376 3323985920 -2914184810805067776 15532559262904483840
   inf    0     0    0     0    0     0     0      0           0          0                    0                    0
  -inf    0     0    0     0    0     0     0      0           0          0                    0                    0
   nan    0     0    0     0    0     0     0      0           0          0                    0                    0
"""

#: Values with their codes; with `saturate` false, where that is another code.
CODES: dict[str, list[tuple[float, int] | tuple[float, int, int]]] = {
    "BOOL": [(0.0, 0), (-0.0, 0), (0.5, 1), (-3.0, 1), (5e-324, 1), (inf, 1), (nan, 1)],
    "FLOAT4E2M1": [
        (0.0, 0x0),
        (-0.0, 0x8),
        (0.25, 0x0),  # between 0 and 0.5: to even
        (0.75, 0x2),  # between 0.5 and 1
        (1.25, 0x2),
        (2.5, 0x4),
        (3.5, 0x6),
        (5.0, 0x6),
        (6.0, 0x7),  # the largest
        (1e9, 0x7),
        (-inf, 0xF),
        (nan, 0x8),  # there is none: zero with the opposite sign
        (-nan, 0x0),
    ],
    "FLOAT6E2M3": [
        (1.0, 0x08),
        (-1.0, 0x28),
        (0.125, 0x01),  # the smallest
        (0.0625, 0x00),
        (0.1875, 0x02),
        (7.25, 0x1E),
        (7.5, 0x1F),  # the largest
        (inf, 0x1F),
        (-100.0, 0x3F),
        (nan, 0x20),
        (-nan, 0x00),
        (-0.0, 0x20),
    ],
    "FLOAT6E3M2": [
        (1.0, 0x0C),
        (-1.0, 0x2C),
        (0.0625, 0x01),  # the smallest
        (0.03125, 0x00),
        (0.09375, 0x02),
        (26.0, 0x1E),
        (28.0, 0x1F),  # the largest
        (inf, 0x1F),
        (-100.0, 0x3F),
        (nan, 0x20),
        (-nan, 0x00),
        (-0.0, 0x20),
    ],
    "FLOAT8E4M3FN": [
        (1.0, 0x38),
        (-2.5, 0xC2),
        (17.0, 0x58),  # between 16 and 18: to even
        (19.0, 0x5A),
        (2.0**-9, 0x01),  # the smallest
        (2.0**-10, 0x00),
        (-(2.0**-10), 0x80),
        (448.0, 0x7E),  # the largest
        (464.0, 0x7E),
        (464.1, 0x7E, 0x7F),
        (-inf, 0xFE, 0xFF),
        (nan, 0x7F),
        (-nan, 0xFF),
    ],
    "FLOAT8E4M3FNUZ": [
        (1.0, 0x40),
        (-2.5, 0xCA),
        (17.0, 0x60),
        (19.0, 0x62),
        (2.0**-10, 0x01),  # the smallest
        (2.0**-11, 0x00),
        (-(2.0**-11), 0x00),  # there is no -0
        (-0.0, 0x00),
        (240.0, 0x7F),  # the largest
        (247.9, 0x7F),
        (248.0, 0x7F, 0x80),
        (-inf, 0xFF, 0x80),
        (nan, 0x80),
        (-nan, 0x80),
    ],
    "FLOAT8E5M2": [
        (1.0, 0x3C),
        (-2.5, 0xC1),
        (9.0, 0x48),
        (11.0, 0x4A),
        (2.0**-16, 0x01),  # the smallest
        (2.0**-17, 0x00),
        (-(2.0**-17), 0x80),
        (57344.0, 0x7B),  # the largest
        (61439.0, 0x7B),
        (61440.0, 0x7B, 0x7C),
        (-inf, 0xFB, 0xFC),
        (nan, 0x7E),
        (-nan, 0xFE),
    ],
    "FLOAT8E5M2FNUZ": [
        (1.0, 0x40),
        (-2.5, 0xC5),
        (9.0, 0x4C),
        (11.0, 0x4E),
        (2.0**-17, 0x01),  # the smallest
        (2.0**-18, 0x00),
        (-0.0, 0x00),
        (57344.0, 0x7F),  # the largest
        (61439.0, 0x7F),
        (61440.0, 0x7F, 0x80),
        (-inf, 0xFF, 0x80),
        (nan, 0x80),
        (-nan, 0x80),
    ],
    "FLOAT8UE5M3": [
        (1.0, 0x78),
        (-2.5, 0x82),  # the sign is discarded
        (17.0, 0x98),
        (19.0, 0x9A),
        (2.0**-17, 0x01),  # the smallest
        (2.0**-18, 0x00),
        (-0.0, 0x00),
        (114688.0, 0xFE),  # the largest
        (118784.0, 0xFE),
        (118785.0, 0xFE, 0xFF),
        (-inf, 0xFE, 0xFF),
        (nan, 0xFF),
        (-nan, 0xFF),
    ],
    "FLOAT8E8M0": [
        (1.0, 0x7F),
        (1.25, 0x80),  # to the next power of two
        (2.0, 0x80),
        (3.0, 0x81),
        (2.0**-127, 0x00),  # the smallest
        (2.0**-128, 0x00, 0xFF),
        (0.0, 0x00, 0xFF),
        (-1.0, 0x00, 0xFF),
        (2.0**127, 0xFE),  # the largest
        (1.1 * 2.0**127, 0xFE, 0xFF),
        (inf, 0xFE, 0xFF),
        (nan, 0xFF),
        (-nan, 0xFF),
    ],
    "FLOAT16": [
        (1.0, 0x3C00),
        (-2.5, 0xC100),
        (0.1, 0x2E66),
        (2049.0, 0x6800),  # between 2048 and 2050: to even
        (2051.0, 0x6802),
        (2.0**-24, 0x0001),  # the smallest
        (2.0**-25, 0x0000),
        (-(2.0**-25), 0x8000),
        (65504.0, 0x7BFF),  # the largest
        (65519.9, 0x7BFF),
        (65520.0, 0x7C00),
        (-inf, 0xFC00),
        (nan, 0x7E00),
        (-nan, 0xFE00),
    ],
    "BFLOAT16": [
        (1.0, 0x3F80),
        (-2.5, 0xC020),
        (0.1, 0x3DCD),
        (257.0, 0x4380),
        (259.0, 0x4382),
        (1 + 2.0**-8 + 2.0**-40, 0x3F81),  # by way of FLOAT it would be a tie, and go to 1
        (2.0**-133, 0x0001),  # the smallest
        (2.0**-134, 0x0000),
        (2.0**128 - 2.0**120, 0x7F7F),  # the largest
        (2.0**128 - 2.0**119, 0x7F80),
        (-inf, 0xFF80),
        (nan, 0x7FC0),
        (-nan, 0xFFC0),
    ],
    "FLOAT": [
        (1.0, 0x3F800000),
        (-2.5, 0xC0200000),
        (0.1, 0x3DCCCCCD),
        (16777217.0, 0x4B800000),
        (16777219.0, 0x4B800002),
        (2.0**-149, 0x00000001),  # the smallest
        (2.0**-150, 0x00000000),
        (-(2.0**-150), 0x80000000),
        (2.0**128 - 2.0**104, 0x7F7FFFFF),  # the largest
        (2.0**128 - 2.0**103, 0x7F800000),
        (-inf, 0xFF800000),
        (nan, 0x7FC00000),
        (-nan, 0xFFC00000),
    ],
    "DOUBLE": [
        (1.0, 0x3FF0000000000000),
        (-2.5, 0xC004000000000000),
        (0.1, 0x3FB999999999999A),
        (-0.0, 0x8000000000000000),
        (5e-324, 0x0000000000000001),
        (-inf, 0xFFF0000000000000),
        (nan, 0x7FF8000000000000),
    ],
}
_NAMES, *_ROWS = (line.split() for line in INTEGERS.strip().splitlines())
for _column, _name in enumerate(_NAMES[1:], 1):
    _mask = (1 << dtype(_name).bits) - 1
    CODES[_name] = [(float(row[0]), int(row[_column]) & _mask) for row in _ROWS]

#: The rules that attributes ask for: values and their codes.
BY_ATTRIBUTES: list[tuple[str, dict[str, Any], list[float], list[int]]] = [
    ("FLOAT8E4M3FNUZ", {"opset": 23}, [inf, -inf, 248], [0x80, 0x80, 0x7F]),
    ("FLOAT8E8M0", {"round_mode": "nearest"}, [1.49, 1.5, 3.0], [127, 128, 129]),
    ("FLOAT8E8M0", {"round_mode": "down", "saturate": False}, [1.9, 0.0, -1.0, 2e38], [127, 255, 255, 255]),
    ("INT4", {"rounding": "nearest_even"}, [2.5, 3.5, -0.5], [2, 4, 0]),
    ("INT4", {"rounding": "nearest_away"}, [2.5, 3.5, -0.5, 0.49999999999999994, 7.5], [3, 4, 15, 0, 8]),
    ("INT4", {"rounding": "nearest_away", "overflow": "saturate"}, [7.5, -8.5, inf, nan], [7, 8, 7, 0]),
    ("INT4", {"rounding": "toward_zero"}, [2.5, -2.5], [2, 14]),
    ("INT8", {"overflow": "saturate"}, [1e9, -1e9, inf, -inf, nan], [127, 128, 127, 128, 0]),
    ("UINT2", {"overflow": "saturate", "rounding": "nearest_even"}, [3.4, 3.5, -1], [3, 3, 0]),
    ("FLOAT16", {"overflow": "saturate"}, [1e9, -inf, 65519], [0x7BFF, 0xFBFF, 0x7BFF]),
    ("FLOAT16", {"rounding": "nearest_even"}, [2049, 65520], [0x6800, 0x7C00]),
    ("FLOAT16", {"rounding": "nearest_away"}, [2049, -2049, 65520, 2.0**-25], [0x6801, 0xE801, 0x7C00, 1]),
    ("FLOAT16", {"rounding": "nearest_away"}, [-(2.0**-25) + 2.0**-60, -inf, nan], [0x8000, 0xFC00, 0x7E00]),
    ("FLOAT16", {"rounding": "toward_zero"}, [2051, -1e9, 2.0**-25, inf], [0x6801, 0xFBFF, 0, 0x7C00]),
    ("FLOAT16", {"rounding": "upward"}, [2049, -2049, -1e9, 1e9, 1e-9], [0x6801, 0xE800, 0xFBFF, 0x7C00, 1]),
    ("FLOAT16", {"rounding": "downward"}, [2049, -2049, 1e9, -1e-9], [0x6800, 0xE801, 0x7BFF, 0x8001]),
    ("FLOAT16", {"rounding": "odd"}, [2048.5, 2049, 2051, 1e9], [0x6801, 0x6801, 0x6801, 0x7BFF]),
    ("FLOAT8E4M3FN", {"rounding": "nearest_away", "saturate": False}, [464, 463, 17], [0x7F, 0x7E, 0x59]),
    ("FLOAT8E4M3FN", {"overflow": "saturate", "saturate": False}, [1e9, -inf], [0x7E, 0xFE]),
    ("FLOAT8E8M0", {"overflow": "saturate", "saturate": False}, [0.0, -1.0, 1e39], [0, 0, 0xFE]),
    ("FLOAT4E2M1", {"rounding": "nearest_away"}, [0.25, 0.75, -1.25, 2.5, 5.0, 7.0], [1, 2, 0xB, 5, 7, 7]),
]

#: Numbers of a type, and the text that they become.
WRITTEN = [
    ("BOOL", [0, 1], ["False", "True"]),
    ("INT8", [-128, 0, 7], ["-128", "0", "7"]),
    ("FLOAT", [0.1, 1e-5, 1e-4, 16777216.0, 1e16, -0.0], ["0.1", "1e-05", "0.0001", "16777216.0", "1e+16", "-0.0"]),
    ("DOUBLE", [0.1, 1 / 3, 5e-324, 1e15], ["0.1", "0.3333333333333333", "5e-324", "1000000000000000.0"]),
    # Of the FLOAT16 numbers 65504 is the nearest to 65500.
    ("FLOAT16", [0.1, 65504.0, inf, -inf, nan], ["0.1", "65500.0", "INF", "-INF", "NaN"]),
    ("FLOAT8E4M3FN", [0.1, 448.0], ["0.1015625", "448.0"]),
]
#: Texts, and the numbers that they become.
READ = [
    ("INT8", [" 7 ", "-128", "1e2", "100.9", "-0.5"], [7, -128, 100, 100, 0]),
    ("BOOL", ["true", "FALSE", "0.0", "1e-999", "NaN"], [True, False, False, True, True]),
    ("FLOAT", ["0.1", "1e-46", ".5", "5.", "+1E2", "1e99", "-inf"], [0.1, 0, 0.5, 5, 100, inf, -inf]),
    # A digit past the tie between 1 and 1 + 2^-7, as far as any float of 64 bits sees.
    ("BFLOAT16", ["1.00390625", "1.00390625" + "0" * 30 + "1"], [1, 1.0078125]),
    ("FLOAT8E4M3FN", ["464", "465", "infinity"], [448, 448, 448]),
]

Engine = Callable[[np.ndarray[Any, Any], CastRule], np.ndarray[Any, Any]]
DOUBLE = dtype("DOUBLE")


def rule_of(to: str, **attributes: Any) -> CastRule:
    return resolve(DOUBLE, dtype(to), Options(**attributes))


@pytest.fixture(scope="module", params=["reference", "module", "kernels"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "kernels":
        rules = [rule_of(name, saturate=saturate) for name in CODES for saturate in (True, False)]
        rules += [rule_of(name, **attributes) for name, attributes, *_ in BY_ATTRIBUTES]
        built = host_build.build(dict.fromkeys(rules), optimize=False)
        return lambda codes, rule: by_kernels(built, rule, codes)
    return {"reference": by_reference, "module": by_module}[request.param]


@pytest.mark.parametrize("name", CODES)
def test_codes(name: str, engine: Engine) -> None:
    codes = np.array([row[0] for row in CODES[name]]).view(np.uint64)
    for saturate, column in ((True, 1), (False, -1)):
        found = engine(codes, rule_of(name, saturate=saturate))
        wanted = [int(row[column]) for row in CODES[name]]
        assert [*map(hex, found.tolist())] == [*map(hex, wanted)], (name, saturate)


@pytest.mark.parametrize(("name", "attributes", "values", "wanted"), BY_ATTRIBUTES)
def test_codes_by_attributes(
    name: str, attributes: dict[str, Any], values: list[float], wanted: list[int], engine: Engine
) -> None:
    found = engine(np.array(values, np.float64).view(np.uint64), rule_of(name, **attributes))
    assert [*map(hex, found.tolist())] == [*map(hex, wanted)]


def test_every_type_has_its_lines() -> None:
    assert {row.name for row in DTYPES} == {*CODES, "STRING"}


@pytest.mark.parametrize(("name", "numbers", "texts"), WRITTEN, ids=[row[0] for row in WRITTEN])
def test_written(name: str, numbers: list[Any], texts: list[str]) -> None:
    x = gpucast.reference.cast(np.array(numbers, np.float64), name)
    for cast in (gpucast.cast, gpucast.reference.cast):
        assert cast(x, "STRING").tolist() == texts


@pytest.mark.parametrize(("name", "texts", "numbers"), READ, ids=[row[0] for row in READ])
def test_read(name: str, texts: list[str], numbers: list[float]) -> None:
    for cast in (gpucast.cast, gpucast.reference.cast):
        found = cast(np.array(texts), name)
        assert found.astype(np.float64).tolist() == np.array(numbers).astype(found.dtype).astype(np.float64).tolist()
