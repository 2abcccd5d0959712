# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import exact
import gpucast
from codes import EXTRA, every_code
from gpucast import files
from gpucast.core.dtypes import DTYPES, DType
from gpucast.parity.cases import NUMERIC, SMALL
from hard_codes import hard_codes

#: NumPy and ml_dtypes, which these rows are compared with, need not have every type of the table.
KNOWN = [row for row in NUMERIC if row.numpy.names is None]
FLOATS = [row for row in KNOWN if row.is_float]


def test_the_table_has_the_types_of_onnx_with_their_numbers() -> None:
    of_onnx = {row: row.opset for row in DTYPES if row.opset is not None}
    numbers = {row.name: row.number for row in of_onnx}
    assert numbers == {
        "BOOL": 9, "INT8": 3, "INT16": 5, "INT32": 6, "INT64": 7, "UINT8": 2, "UINT16": 4, "UINT32": 12, "UINT64": 13,
        "FLOAT16": 10, "FLOAT": 1, "DOUBLE": 11, "STRING": 8, "BFLOAT16": 16, "FLOAT8E4M3FN": 17, "FLOAT8E4M3FNUZ": 18,
        "FLOAT8E5M2": 19, "FLOAT8E5M2FNUZ": 20, "UINT4": 21, "INT4": 22, "FLOAT4E2M1": 23, "FLOAT8E8M0": 24,
        "UINT2": 25, "INT2": 26, "FLOAT6E2M3": 27, "FLOAT6E3M2": 28,
    }  # fmt: skip
    opsets = {
        opset: sum(first <= opset for first in of_onnx.values()) for opset in (1, 6, 9, 13, 19, 21, 23, 24, 25, 28)
    }
    assert opsets == {1: 12, 6: 12, 9: 13, 13: 14, 19: 18, 21: 20, 23: 21, 24: 22, 25: 24, 28: 26}


@pytest.mark.parametrize("row", [row for row in SMALL if row in KNOWN], ids=str)
def test_value_is_what_ml_dtypes_and_the_model_decode(row: DType) -> None:
    codes = every_code(row) if row.bits <= 8 else hard_codes(row, row, 5000)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(row.numpy).astype(np.float64)
    for code, value in zip(codes.tolist(), theirs.tolist(), strict=True):
        mine, number = row.value(code), exact.decode(row, code)
        assert mine == value or (math.isnan(mine) and math.isnan(value))
        assert math.isnan(mine) == (number.kind == "nan")
        if number.kind == "finite":
            assert Fraction(mine) == (-number.magnitude if number.negative else number.magnitude)
            assert (math.copysign(1, mine) < 0) == (number.negative and (row.is_float or mine != 0))


@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_finfo(row: DType) -> None:
    mine, theirs = gpucast.finfo(row), ml_dtypes.finfo(row.numpy)
    for name in ("bits", "max", "min", "eps", "smallest_normal", "smallest_subnormal", "nexp", "nmant"):
        assert getattr(mine, name) == float(getattr(theirs, name)), name
    everything = np.arange(1 << min(row.bits, 16), dtype=np.uint64) << np.uint64(max(row.bits - 16, 0))
    with np.errstate(invalid="ignore"):
        values = everything.astype(row.code_numpy).view(row.numpy).astype(np.float64)
    assert mine.has_nan == np.isnan(values).any()
    assert mine.has_inf == np.isinf(values).any()


def test_finfo_and_iinfo_refuse_other_families() -> None:
    for kind in ("BOOL", "INT4", "STRING"):
        with pytest.raises(TypeError, match="is not a floating type"):
            gpucast.finfo(kind)
    for kind in ("BOOL", "FLOAT", "FLOAT8E8M0"):
        with pytest.raises(TypeError, match="is not an integer type"):
            gpucast.iinfo(kind)


@pytest.mark.parametrize("row", DTYPES, ids=str)
def test_every_name_of_a_row_is_taken(row: DType) -> None:
    names = [row, row.name, row.name.lower(), row.name.title(), row.numpy]
    if row.number is not None:
        names += [row.number, np.int64(row.number)]
    if row in KNOWN:
        names += [row.numpy_name, row.numpy.type, np.empty(0, row.numpy).dtype, row.numpy.newbyteorder(">")]
    for name in gpucast.dtype.names(row):
        # In any case, but for the codes that mean another type in lower case.
        names += [name.upper(), name.lower(), name.title()] if name.islower() and len(name) > 3 else [name]
    for name in names:
        assert gpucast.dtype(name) is row, name
    assert pickle.loads(pickle.dumps(row)) is row
    if row.safetensors:
        assert gpucast.dtype.from_safetensors(row.safetensors) is row


#: What people write, and what it means: everybody who reads it reads this.
WRITTEN = {
    "BOOL": ["bool", "BOOL", "torch.bool", "|b1"],
    "UINT8": ["uint8", "torch.uint8", "|u1"],
    "UINT16": ["u16", "torch.uint16", "<u2"],
    "UINT32": ["u32"],
    "UINT64": ["u64", ">u8"],
    "INT8": ["I8", "torch.int8", "|i1"],
    "INT16": ["I16", "i16", "short", "torch.short"],
    "INT32": ["I32", "i32", "torch.int", "torch.int32", "<i4"],
    "INT64": ["I64", "i64", "torch.long", "=i8"],
    "FLOAT16": ["F16", "fp16", "FP16", "half", "torch.half", "torch.float16", "<f2"],
    "BFLOAT16": ["BF16", "bf16", "torch.bfloat16", "Bfloat16"],
    "FLOAT": ["F32", "f32", "fp32", "float", "torch.float", "torch.float32", "<f4", ">f4"],
    "DOUBLE": ["F64", "f64", "fp64", "double", "torch.double", "<f8"],
    "FLOAT8E4M3FN": ["F8_E4M3", "torch.float8_e4m3fn", "FLOAT8_E4M3FN"],
    "FLOAT8E4M3FNUZ": ["F8_E4M3FNUZ"],
    "FLOAT8E5M2": ["F8_E5M2", "f8_e5m2"],
    "FLOAT8E5M2FNUZ": ["F8_E5M2FNUZ"],
    "FLOAT8E8M0": ["F8_E8M0", "torch.float8_e8m0fnu"],
    "FLOAT4E2M1": ["F4", "torch.float4_e2m1fn_x2"],
    "FLOAT6E2M3": ["F6_E2M3"],
    "STRING": ["str", "string", "<U5", "|S3"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRITTEN.items() for text in texts])
def test_what_people_write_is_taken(name: str, text: str) -> None:
    assert gpucast.dtype(text).name == name


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("fp8", {"bits": 8}),
        ("FP8", {"bits": 8}),
        ("float8", {"bits": 8}),
        ("fp6", {"bits": 6}),
        ("e4m3", {"exponent_bits": 4, "mantissa_bits": 3}),
        ("fp8_e4m3", {"bits": 8, "exponent_bits": 4, "mantissa_bits": 3}),
        ("torch.e5m2", {"exponent_bits": 5, "mantissa_bits": 2}),
    ],
)
def test_a_family_is_refused_with_its_members(text: str, columns: dict[str, int]) -> None:
    rows = [row for row in DTYPES if row.is_float and all(getattr(row, name) == n for name, n in columns.items())]
    members = ", ".join(row.name for row in rows)
    assert len(rows) > 1
    with pytest.raises(TypeError, match=f"is a family of types; write one of them: {members}$"):
        gpucast.dtype(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("fp4", "FLOAT4E2M1"), ("float4", "FLOAT4E2M1"), ("E2M1", "FLOAT4E2M1"), ("e8m0", "FLOAT8E8M0"),
     ("torch.e2m3", "FLOAT6E2M3")],
)  # fmt: skip
def test_a_family_of_one_is_that_type(text: str, name: str) -> None:
    assert gpucast.dtype(text) is gpucast.dtype(name)


@pytest.mark.parametrize(
    ("text", "call"),
    [("mxfp4", r"gpucast.quantize\(x, 'mxfp4'\), or `gpucast convert` with --to FLOAT4E2M1 --scale mx$"),
     ("NVFP4", r"gpucast.quantize\(x, 'nvfp4'\), or `gpucast convert` with --to FLOAT4E2M1 --scale nvfp4$"),
     ("int4_32", r"gpucast.quantize\(x, 'int4_32'\)$"), ("float8e4m3fn_tensor", r"gpucast.quantize\(x, "),
     ("uint8_zp_tensor", r"gpucast.quantize\(x, "), ("nf4", r"gpucast.quantize\(x, 'nvfp4'\).*NF4 itself")],
)  # fmt: skip
def test_a_format_of_quantization_names_the_call_that_takes_it(text: str, call: str) -> None:
    with pytest.raises(TypeError, match=f"^cast: to='{text}' is a format of quantization, .*{call}"):
        gpucast.cast([1.0], text)


def test_swapped_and_misnamed_arguments_say_so() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(TypeError, match=r"^cast: to=ndarray is no dtype: the array is the first argument"):
        gpucast.cast("FLOAT16", x)
    with pytest.raises(TypeError, match=r"^cast: x is the type float16; the array is the first argument"):
        gpucast.cast(np.float16, "FLOAT16")
    with pytest.raises(TypeError, match=r"the second argument is `to`"):
        gpucast.cast(x, dtype="FLOAT16")  # type: ignore[call-overload]


AMBIGUOUS = "i4 f4 u2 f8 e ? i8 u8 I4 f16 F2 U8 U16 U32 U64 int LONG".split()
NO_TYPES = ["", "qwertz", "e9m9", "V1", 0, 14, 99, -1, 1.0, None, [], object, np.floating, ml_dtypes.finfo]
NO_TYPES += [np.longdouble, np.dtype("M8[s]")]
NEAREST = {"blfoat16": "BFLOAT16", "FLAOT": "FLOAT", "float8e4m3fnu": "FLOAT8E4M3FNUZ", "unit8": "UINT8"}
NEAREST |= {"torch.qint8": "INT8", "float32 ": "FLOAT", "bool_": "BOOL", "float7": "FLOAT"}
#: Messages, and what has them.
REFUSED: dict[str, list[Any]] = {
    r"is ambiguous: it reads as .* or as .*; write a full name": [*AMBIGUOUS, float, int, True, np.True_],
    r"is complex; Cast takes no complex type": ["complex64", "COMPLEX128", np.complex64, np.dtype(complex), complex],
    r"is (not a dtype; expected one of BFLOAT16, BOOL, |ambiguous)": NO_TYPES,
    **{rf"is not a dtype; did you mean {nearest}\?$": [text] for text, nearest in NEAREST.items()},
}


@pytest.mark.parametrize(("message", "kind"), [(message, kind) for message in REFUSED for kind in REFUSED[message]])
def test_what_is_no_dtype_is_refused(message: str, kind: Any) -> None:
    with pytest.raises(TypeError, match=f"^dtype: .* {message}"):
        gpucast.dtype(kind)


def test_safetensors_codes_are_read_apart() -> None:
    assert gpucast.dtype.from_safetensors("F4").name == "FLOAT4E2M1"
    for code in ("C64", "F5", "f32", "", "FLOAT"):
        with pytest.raises(TypeError, match=f"^dtype: {code!r} is not a safetensors dtype that Cast takes; expected"):
            gpucast.dtype.from_safetensors(code)


def test_value_refuses_other_numbers() -> None:
    for code in (-1, 16):
        with pytest.raises(ValueError, match=r"FLOAT4E2M1: code .* is not in 0\.\.0xf"):
            gpucast.dtype("FLOAT4E2M1").value(code)
    for what in ("nan_code", "inf_code"):
        with pytest.raises(ValueError, match="FLOAT4E2M1 has no"):
            getattr(gpucast.dtype("FLOAT4E2M1"), what)


# The module has been built without these rows: until it is built again, the reference does the work, and says so.
@pytest.mark.filterwarnings("ignore::gpucast.core.errors.SlowHostWarning")
@pytest.mark.parametrize("row", EXTRA, ids=str)
def test_a_format_is_one_row(row: DType) -> None:
    with pytest.raises(TypeError):
        gpucast.dtype(row.numpy_name)
    with gpucast.dtype.registered(*EXTRA):
        assert gpucast.dtype(row.numpy) is row
        # Saturating, out of it into every type, and the reference, by the model.
        codes = np.arange(256, dtype=np.uint8)
        for other in (*NUMERIC[EXTRA.index(row) :: len(EXTRA)], *EXTRA):
            for src, dst in ((row, other), (other, row)):
                source = codes.astype(src.code_numpy) & src.code_numpy.type(src.code_mask)
                if src.family == "bool":
                    source %= 2
                if src.bits > 8:
                    source = (source << (src.bits - 8)) + source
                array = source.view(src.numpy)
                rule = gpucast.core.rule.resolve(src, dst)
                wanted_codes = np.array(exact.cast_codes(source, rule), dtype=np.uint64)
                for cast in (gpucast.cast, gpucast.reference.cast):
                    assert np.array_equal(cast(array, dst).view(dst.code_numpy), wanted_codes), (cast, rule)
        text = gpucast.cast(codes.view(row.numpy), "STRING")
        back, values = (
            gpucast.cast(array, "FLOAT") for array in (gpucast.cast(text, row, saturate=False), codes.view(row.numpy))
        )
        assert np.array_equal(back, values, equal_nan=True)
    with pytest.raises(TypeError):
        gpucast.dtype(row.name)


@pytest.mark.filterwarnings("ignore::gpucast.core.errors.SlowHostWarning")
def test_a_type_that_numpy_lacks_is_codes_in_a_named_field(tmp_path: Path) -> None:
    row = EXTRA[-1]
    x = np.float32([[0.1, 1.03, 7], [-3, 1e12, -0.0]])
    with gpucast.dtype.registered(*EXTRA):
        y = gpucast.cast(x, "e6m1")
        assert y.dtype == [("float8_e6m1", "u1")] and y["float8_e6m1"].tolist() == [[55, 62, 68], [193, 127, 128]]
        assert gpucast.cast(y[:, ::2], "FLOAT").tolist() == [[0.09375, 8], [-3, 0]]
        assert gpucast.from_bytes(bytes([55, 62]), row, (2,)).tolist() == [(55,), (62,)]
        files.save(f"{tmp_path}/y.npz", {"y": y})
        assert np.array_equal(files.load(f"{tmp_path}/y.npz")["y"], y)
        with pytest.raises(files.FileError, match="ONNX has no FLOAT8E3M4; write .npz or .safetensors"):
            files.save(f"{tmp_path}/y.pb", {"y": gpucast.cast(x, EXTRA[0])})
        for kind in ([("float8_e6m1", "<u2")], [("float8_e6m1", "u1"), ("b", "u1")], [("float32", "<f4")]):
            with pytest.raises(TypeError, match="is not a dtype"):
                gpucast.dtype(np.dtype(kind))


def fields(**changes: object) -> tuple[Any, ...]:
    """The columns of a row that is right, and these changes."""
    names = ("name", "number", "family", "bits", "sign", "exponent", "mantissa", "bias", "specials", "opset", "numpy")
    right = dict(zip(names, ("T", None, "float", 8, 1, 3, 4, 3, "ieee", None, "t"), strict=True))
    return (*(right | changes).values(), None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"exponent": 9}, r"1 \+ 9 \+ 4 bits of sign, exponent and mantissa are not the 8 bits of the type"),
        ({"bits": 5}, "5 bits; float types have 4, 6, 8, 16, 32, 64"),
        ({"sign": 0, "exponent": 4}, "bits of sign, exponent, mantissa: 0, 4, 4; sign 1, exponent 1 or more"),
        ({"exponent": 7, "mantissa": 0}, "bits of sign, exponent, mantissa: 1, 7, 0; .* mantissa 1 or more"),
        ({"specials": "odd"}, "special codes 'odd'; float types have none, ieee, fn, fnuz"),
        ({"family": "flaot"}, "family 'flaot'; expected one of bool, int, float, e8m0, string"),
        ({"bias": 1020}, "with a bias of 1020 some of its numbers are not normal numbers of DOUBLE"),
        ({"family": "int", "specials": "none"}, "int types have no exponent, mantissa or bias"),
        ({"number": 0}, "ONNX number 0; expected 1 or more, or none"),
        ({"numpy": "float16"}, "float16 has 16 bits in NumPy; expected 8"),
    ],
)
def test_a_row_whose_fields_contradict_each_other_is_refused(changes: dict[str, object], problem: str) -> None:
    DType(*fields())
    with pytest.raises(ValueError, match=f"^dtype: the row of T is wrong: {problem}"):
        DType(*fields(**changes))


def test_a_second_row_of_one_name_is_refused_and_leaves_no_trace() -> None:
    double = DType("FLOAT16", 99, "float", 8, 1, 3, 4, 3, "ieee", None, "float8_e3m4", None)
    with pytest.raises(ValueError, match="is already taken by FLOAT16"), gpucast.dtype.registered(double):
        pass
    assert gpucast.dtype(10).name == gpucast.dtype("FLOAT16").name == "FLOAT16"
    with pytest.raises(TypeError):
        gpucast.dtype(99)


@pytest.mark.parametrize("row", [row for row in NUMERIC if row.family == "int"], ids=str)
def test_iinfo(row: DType) -> None:
    mine, theirs = gpucast.iinfo(row.name), ml_dtypes.iinfo(row.numpy)
    assert (mine.min, mine.max, mine.bits) == (int(theirs.min), int(theirs.max), row.bits)


@pytest.mark.parametrize("kind", [str, np.str_, np.bytes_, np.dtype("U3"), np.dtype("S3"), np.dtypes.StringDType()])
def test_text_dtypes_are_string(kind: object) -> None:
    assert gpucast.dtype(kind).name == "STRING"
