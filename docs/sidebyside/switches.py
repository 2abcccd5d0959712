# SPDX-License-Identifier: Apache-2.0
"""The lines that `docs/switching.py` compares, for each library that people come from."""

from __future__ import annotations

from sidebyside.lines import Line

_RANGE = "x = np.float32([300, -1, 3e9, np.nan, np.inf])"

NUMPY: tuple[Line, ...] = (
    Line(
        "Out of range to float8 saturates",
        "ONNX clamps by default. ml_dtypes does not; `saturate=False` does as ml_dtypes.",
        "x = np.float32([0.1, 500, -np.inf])",
        "x.astype(ml_dtypes.float8_e4m3fn)",
        'gpucast.cast(x, "FLOAT8E4M3FN")',
        'gpucast.cast(x, "FLOAT8E4M3FN", saturate=False)',
    ),
    Line(
        "Rounded once",
        "ml_dtypes converts float64 and wide integers to float32 first, which rounds twice.",
        "x = np.float64([4.015625000000001])",
        "x.astype(ml_dtypes.bfloat16)",
        'gpucast.cast(x, "BFLOAT16")',
        'gpucast.cast(gpucast.cast(x, "FLOAT"), "BFLOAT16")',
    ),
    Line(
        "Out of range to integers is defined",
        "NumPy's result depends on the processor and on the length of the array. gpucast keeps the low bits, gives 0\n"
        'for NaN and infinities, and does not warn. `overflow="saturate"` clamps.',
        _RANGE,
        "x.astype(np.int32)",
        'gpucast.cast(x, "INT32")',
        varies=True,
    ),
    Line(
        "FLOAT8E8M0 rounds up",
        "ONNX takes the next larger power of two by default, and clamps. ml_dtypes takes the nearest one, and gives\n"
        "NaN for values without one.",
        "x = np.float32([1.25, 1.5, 0, -1])",
        "x.astype(ml_dtypes.float8_e8m0fnu)",
        'gpucast.cast(x, "FLOAT8E8M0")',
        'gpucast.cast(x, "FLOAT8E8M0", saturate=False, round_mode="nearest")',
    ),
    Line(
        "Every pair of types",
        "ml_dtypes lacks a few pairs. [Conformance](conformance.md) lists them.",
        "x = np.int64([9, -1]).astype(ml_dtypes.int4)",
        "x.astype(ml_dtypes.uint4)",
        'gpucast.cast(x, "UINT4")',
    ),
    Line(
        "NaN is quiet and has no payload",
        "NumPy copies the upper bits of the payload. Other processors and libraries may not.",
        "x = np.uint32([0x7FE00000]).view(np.float32)",
        "x.astype(np.float16)",
        'gpucast.cast(x, "FLOAT16")',
        varies=True,
    ),
    Line(
        "Text has the shortest digits, and Python's layout",
        "NaN and infinities are written as the operator writes them.",
        "x = np.float32([1e-4, 1234567, np.inf])",
        "x.astype(str)",
        'gpucast.cast(x, "STRING")',
    ),
    Line(
        "Text is rounded once",
        "NumPy reads text as float64, and rounds again. It also accepts underscores and digits of other scripts.",
        'x = np.array(["1.000000059604644775390626"])',
        "x.astype(np.float32)",
        'gpucast.cast(x, "FLOAT")',
        'gpucast.cast(gpucast.cast(x, "DOUBLE"), "FLOAT")',
    ),
    Line(
        "Short type codes are refused",
        "NumPy reads `i4` as a 32-bit integer, others as a 4-bit one.",
        "x = np.float32([1, 2])",
        'x.astype("i4")',
        'gpucast.cast(x, "i4")',
        'gpucast.cast(x, "int32")',
    ),
)

TORCH: tuple[Line, ...] = (
    Line(
        "Out of range to float8: one rule for all four types",
        "PyTorch clamps to `float8_e4m3fn`. To the others it gives infinity or NaN. Here `saturate` decides.",
        't = torch.tensor([0.1, 1e9, float("-inf")])',
        "t.to(torch.float8_e5m2)",
        "gpucast.cast(t, torch.float8_e5m2)",
        "gpucast.cast(t, torch.float8_e5m2, saturate=False)",
    ),
    Line(
        "... and for float8_e4m3fnuz",
        "The same rule, with NaN in place of infinity.",
        't = torch.tensor([0.1, 1e9, float("-inf")])',
        "t.to(torch.float8_e4m3fnuz)",
        "gpucast.cast(t, torch.float8_e4m3fnuz)",
        "gpucast.cast(t, torch.float8_e4m3fnuz, saturate=False)",
    ),
    Line(
        "Rounded once from float64",
        "PyTorch converts to float32 first, and then to float16, bfloat16 or float8.",
        "t = torch.tensor([4.001953125000001], dtype=torch.float64)",
        "t.to(torch.float16)",
        "gpucast.cast(t, torch.float16)",
        "gpucast.cast(t.to(torch.float32), torch.float16)",
    ),
    Line(
        "... and from wide integers",
        "PyTorch does the same with integers of more than 24 bits to bfloat16.",
        "t = torch.tensor([16842753], dtype=torch.int32)",
        "t.to(torch.bfloat16)",
        "gpucast.cast(t, torch.bfloat16)",
        "gpucast.cast(t.to(torch.float32), torch.bfloat16)",
    ),
    Line(
        "Out of range to integers is defined",
        "PyTorch's result depends on the processor. Here it is the same everywhere.",
        't = torch.tensor([300, -1, 3e9, float("nan"), float("inf")])',
        "t.to(torch.int32)",
        "gpucast.cast(t, torch.int32)",
        varies=True,
    ),
    Line(
        "float8_e8m0fnu rounds up",
        "PyTorch takes the nearest power of two. ONNX takes the next larger one by default.",
        "t = torch.tensor([1.25, 1.5, 1.75, 0])",
        "t.to(torch.float8_e8m0fnu)",
        "gpucast.cast(t, torch.float8_e8m0fnu)",
        'gpucast.cast(t, torch.float8_e8m0fnu, round_mode="nearest")',
    ),
    Line(
        "... and negative numbers have no power of two",
        "PyTorch ignores the sign. Here negative numbers become the smallest value, or NaN with `saturate=False`.",
        "t = torch.tensor([-1.0])",
        "t.to(torch.float8_e8m0fnu)",
        "gpucast.cast(t, torch.float8_e8m0fnu)",
    ),
    Line(
        "Types below one byte are cast",
        "PyTorch has dtypes for these types, but no casts.",
        "t = torch.tensor([[0.4, -7.0]])",
        "t.to(torch.float4_e2m1fn_x2)",
        "gpucast.cast(t, torch.float4_e2m1fn_x2)",
    ),
    Line(
        "Bits of NaN",
        "PyTorch's NaN has different bits in different types, and sometimes a sign. Here NaN is quiet, and has the\n"
        "sign of the source.",
        't = torch.tensor([float("nan")])',
        "t.to(torch.bfloat16)",
        "gpucast.cast(t, torch.bfloat16)",
        varies=True,
    ),
)

ONNXRUNTIME: tuple[Line, ...] = (
    Line(
        "Fractions to 2- and 4-bit integers are truncated",
        "onnxruntime truncates to wider integers. To these it rounds, and halves go away from zero.",
        "x = np.float32([0.4, 0.5, 1.5, -0.5])",
        'Cast(x, to="INT4")',
        'gpucast.cast(x, "INT4")',
    ),
    Line(
        "The last step below overflow, saturate=0",
        "ONNX: everything above 464 is out of range. onnxruntime: everything from 496 on.",
        "x = np.float32([464, 480, 496])",
        'Cast(x, to="FLOAT8E4M3FN", saturate=0)',
        'gpucast.cast(x, "FLOAT8E4M3FN", saturate=False)',
    ),
    Line(
        "Infinity of FLOAT8E5M2, saturate=0",
        "ONNX gives infinity from 61440 on. onnxruntime gives NaN below 65536.",
        "x = np.float32([61440, 65536])",
        'Cast(x, to="FLOAT8E5M2", saturate=0)',
        'gpucast.cast(x, "FLOAT8E5M2", saturate=False)',
    ),
    Line(
        "Rounded once from DOUBLE",
        "onnxruntime converts to FLOAT first, and then to any narrower type.",
        "x = np.float64([4.001953125000001])",
        'Cast(x, to="FLOAT16")',
        'gpucast.cast(x, "FLOAT16")',
        'gpucast.cast(gpucast.cast(x, "FLOAT"), "FLOAT16")',
    ),
    Line(
        "Out of range to integers is defined",
        "onnxruntime's result depends on the processor. Here it is the same everywhere.",
        _RANGE,
        'Cast(x, to="INT32")',
        'gpucast.cast(x, "INT32")',
        varies=True,
    ),
    Line(
        "-0 of float8 is False",
        "onnxruntime tests whether the byte is 0.",
        'x = gpucast.cast(np.float32([-0.0]), "FLOAT8E4M3FN")',
        'Cast(x, to="BOOL")',
        'gpucast.cast(x, "BOOL")',
    ),
    Line(
        "Text of numbers gives them back",
        "onnxruntime writes eight digits.",
        "x = np.float64([2 / 3, 123456789, 1])",
        'Cast(x, to="STRING")',
        'gpucast.cast(x, "STRING")',
    ),
    Line(
        "Text that is no number is an error",
        "onnxruntime reads as many digits as it can, and ignores the rest.",
        'x = np.array(["42abc"], dtype=object)',
        'Cast(x, to="INT32")',
        'gpucast.cast(x, "INT32")',
    ),
    Line(
        "FLOAT4E2M1 and float6 are cast",
        "onnxruntime has no kernels for them yet.",
        "x = np.float32([0.4, -7])",
        'Cast(x, to="FLOAT4E2M1")',
        'gpucast.cast(x, "FLOAT4E2M1")',
    ),
)

_DIFFERENCE = "CuPy's [user guide](https://docs.cupy.dev/en/stable/user_guide/difference.html)"

CUPY: tuple[Line, ...] = (
    Line(
        "Out of range to integers is defined",
        f"{_DIFFERENCE}\nsays that such casts are undefined in C++, and gives this example.",
        "x = np.float32([-1])",
        "cupy.asarray(x).astype(np.uint32)",
        'gpucast.cast(x, "UINT32")',
        'gpucast.cast(x, "UINT32", overflow="saturate")',
        documented="0",
    ),
    Line(
        "... infinities too",
        "This example is on the same page.",
        "x = np.float32([np.inf])",
        "cupy.asarray(x).astype(np.int32)",
        'gpucast.cast(x, "INT32")',
        'gpucast.cast(x, "INT32", overflow="saturate")',
        documented="2147483647",
    ),
    Line(
        "Subnormal numbers are kept",
        "CuPy compiles everything with `-ftz=true`, so a float32 below 2^-126 counts as zero in its casts\n"
        "([issue 8382](https://github.com/cupy/cupy/issues/8382)).",
        "x = np.float32([1e-40])",
        "cupy.asarray(x).astype(np.float64)",
        'gpucast.cast(x, "DOUBLE")',
        documented="0.0",
    ),
    Line(
        "Float8, float6, float4, 2- and 4-bit integers",
        "CuPy 14 has bfloat16, and none of these: `Unsupported dtype`. Here an 8-bit float is a CuPy array with the\n"
        "ml_dtypes dtype. A type below one byte is a `PackedArray`.",
        "x = np.float32([0.1, 500])",
        "cupy.asarray(x).astype(ml_dtypes.float8_e4m3fn)",
        'gpucast.cast(x, "FLOAT8E4M3FN")',
        documented="ValueError: refused",
    ),
    Line(
        "Rounded once from float64",
        "CuPy converts to float32 first, and then to bfloat16.",
        "x = np.float64([4.015625000000001])",
        "cupy.asarray(x).astype(ml_dtypes.bfloat16)",
        'gpucast.cast(x, "BFLOAT16")',
        'gpucast.cast(gpucast.cast(x, "FLOAT"), "BFLOAT16")',
        documented="4.0",
    ),
)
