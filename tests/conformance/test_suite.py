# SPDX-License-Identifier: Apache-2.0
"""cast-conformance: tables, readers in Python and C, runner, adapters."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpucast
from cast_conformance import compare, generate, manifest, quantized, read, reader, report, run
from cast_conformance.__main__ import main
from cast_conformance.adapters import load
from cast_conformance.conventions import conventions
from cast_conformance.numbers import is_nan, value
from exact import cast_codes
from gpucast.core.rule import Options, resolve

PACKAGE = Path(generate.__file__).parent
#: A part of the tables: each kind of destination, narrow and wide sources.
PAIRS = (
    "FLOAT:FLOAT8E4M3FN", "FLOAT:FLOAT4E2M1", "FLOAT:FLOAT8E8M0", "FLOAT:INT8", "FLOAT:FLOAT16",
    "DOUBLE:FLOAT16", "DOUBLE:FLOAT", "DOUBLE:FLOAT8E5M2FNUZ", "INT64:BFLOAT16", "INT16:FLOAT16", "INT16:INT4",
    "FLOAT8E5M2:FLOAT16", "FLOAT16:FLOAT8E5M2", "BFLOAT16:BOOL", "UINT2:UINT64",
)  # fmt: skip
FORMATS = ("nvfp4", "mxfp8e4m3", "int8_tensor", "float8e4m3fn_128x128", "compressed-tensors-mxfp8")


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The part, made anew and compared with the checksums."""
    folder = tmp_path_factory.mktemp("tables")
    assert generate.main(["--pairs", *PAIRS, "--formats", *FORMATS, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(autouse=True)
def found(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers look in the part."""
    for module in (reader, compare, quantized):
        monkeypatch.setattr(module, "TABLES", tables)
    monkeypatch.setattr("cast_conformance.__main__.TABLES", tables)


def pairs() -> list[tuple[str, str]]:
    return [(src, dst) for src, dst in (pair.split(":") for pair in PAIRS)]


# ---- the data ----


def test_a_table_that_differs_from_its_checksum_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_RANDOM", 1)
    assert generate.main(["--pairs", "FLOAT:INT8", "--out", str(tmp_path)]) == 1
    assert not [*tmp_path.iterdir()]


def test_the_manifest_has_every_pair_and_what_proves_it() -> None:
    content = manifest()
    numeric = [row.name for row in generate.NUMERIC]
    every = {f"{src}-{dst}" for src in numeric for dst in numeric}
    assert content["tables"].keys() == every | {f"block-{name}" for name in content["formats"]}
    assert content["proved"] == generate.proofs()
    assert content["proved"].keys() == every
    assert all("onnx" in columns for columns in content["proved"].values())
    for pair in every:
        bits = content["types"][pair.split("-")[0]]["bits"]
        cases = content["tables"][pair]["cases"]
        assert cases >= 2000 if bits > 16 else cases == (2 if pair.startswith("BOOL") else 1 << bits), pair
    assert content["types"] == generate.facts()
    assert content["conventions"] == json.loads(json.dumps(generate.listed(content["types"])))


def test_the_rules_agree_with_exact_arithmetic(tables: Path) -> None:
    """Of every table a share, by fractions, one number at a time."""
    for src, dst in pairs():
        table = compare.Table(src, dst)
        rows = gpucast.dtype(src), gpucast.dtype(dst)
        some = np.arange(0, table.input.size, max(1, table.input.size // 150))
        for name, keywords in generate.rules(*rows).items():
            wanted = cast_codes(table.input[some], resolve(*rows, Options(**keywords)))
            assert table.arrays.get(name, table.arrays["onnx"])[some].tolist() == wanted, (src, dst, name)


def test_numbers_and_nan_need_no_gpucast() -> None:
    for row in generate.NUMERIC:
        if row.bits <= 8:
            codes = np.arange(1 << row.bits if row.family != "bool" else 2, dtype=np.uint8)
            facts = manifest()["types"][row.name]
            wanted = [row.value(code) for code in codes.tolist()]
            assert is_nan(codes, facts).tolist() == [number != number for number in wanted]
            got = [value(code, facts) for code in codes.tolist()]
            assert repr(got) == repr(wanted).replace("-nan", "nan")


def test_classes() -> None:
    table, row = compare.Table("FLOAT", "INT8"), manifest()["types"]["FLOAT"]
    for code, bits in zip(table.input.tolist(), table.kinds.tolist(), strict=True):
        one = value(code, row)
        outside = np.isfinite(one) and not -129 < Fraction(one) < 128
        assert bits & 7 == (one != one) + 2 * bool(np.isinf(one)) + 4 * outside, one


# ---- the readers ----


def test_python_alone_reads_a_table(tables: Path) -> None:
    code = "import sys, cast_conformance; t = cast_conformance.read(sys.argv[1]); print(hex(t['onnx'][0x3c00]))"
    code += "; assert 'numpy' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tables / "FLOAT16-FLOAT8E5M2.cct")],
        capture_output=True, text=True, check=True, cwd=PACKAGE.parent,
    )  # fmt: skip
    assert done.stdout == "0x3c\n"


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cct").write_bytes(b"PK\3\4" + bytes(20))
    with pytest.raises(ValueError, match="is not a table: it begins with b'PK"):
        read(tmp_path / "a.cct")


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C reader's example, which casts with _Float16."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    program = tmp_path_factory.mktemp("c") / "float16"
    source = PACKAGE / "float16.c"
    subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    return program


def test_the_c_reader_runs_against_a_compilers_float16(checker: Path, tables: Path) -> None:
    done = subprocess.run([checker, tables], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.fullmatch(
        r"(FLOAT|DOUBLE) to FLOAT16: 0 of (\d{6}) differ\n" * 2 + r"INT16 .* 0 of 65536 differ\n", done.stdout
    )


def test_the_c_reader_sees_a_wrong_table(checker: Path, tables: Path, tmp_path: Path) -> None:
    for path in tables.glob("*-FLOAT16.cct"):
        shutil.copy(path, tmp_path)
    table = generate.cast_table(gpucast.dtype("INT16"), gpucast.dtype("FLOAT16"))
    table["onnx"][77] ^= 1
    (tmp_path / "INT16-FLOAT16.cct").write_bytes(generate.packed(table))
    done = subprocess.run([checker, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "INT16 to FLOAT16: 1 of 65536 differ" in done.stdout
    (tmp_path / "FLOAT-FLOAT16.cct").write_bytes((tables / "FLOAT-FLOAT16.cct").read_bytes()[:1000])
    assert subprocess.run([checker, tmp_path], capture_output=True, check=False).returncode == 1


# ---- the runner ----


class Adapter(ModuleType):
    """gpucast's results, changed by a function."""

    def __init__(self, change: Any) -> None:
        super().__init__("changed")
        self.change = change

    def version(self) -> str:
        return "1"

    def cast(self, codes: Any, src: str, dst: str, mode: str) -> Any:
        return self.change(load("gpucast").cast(codes, src, dst, mode or "onnx"))


def verdict(change: Any, src: str, dst: str, mode: str = "") -> compare.Verdict:
    return run.run(Adapter(change), "changed", [mode], [(src, dst)])[0].pairs[src, dst]


def test_gpucast_is_exact_in_all_modes() -> None:
    adapter = load("gpucast")
    for result in run.run(adapter, "gpucast", adapter.MODES, pairs()):
        assert not result.refused
        assert not result.wrong
        if result.mode == "onnx":
            assert {found.convention for found in result.pairs.values()} == {"onnx"}


def test_a_fault_has_a_name_and_its_plainest_case() -> None:
    twice = lambda y: compare.Table("DOUBLE", "FLOAT16").arrays["via-float"]  # noqa: E731
    found = verdict(twice, "DOUBLE", "FLOAT16")
    assert found.faults == {"via-float": found.wrong}
    number = r"0x\w+ \(\S+\)"
    assert re.fullmatch(f"DOUBLE {number} to FLOAT16 gives {number}, not {number}", str(found.worst["via-float"]))
    one = verdict(lambda y: np.where(y == 0x38, 0x39, y).astype(np.uint8), "FLOAT", "FLOAT8E4M3FN")
    assert {"other", "via-float16"} & one.faults.keys()


def test_one_nan_is_as_good_as_another_where_a_convention_says_so() -> None:
    found = verdict(lambda y: np.where(y == 0x7E00, 0x7FFF, y).astype(np.uint16), "FLOAT", "FLOAT16")
    assert (found.convention, found.wrong) == ("ieee", 0)
    strict = verdict(lambda y: np.where(y == 0x7E00, 0x3C00, y).astype(np.uint16), "FLOAT", "FLOAT16")
    assert (strict.wrong, strict.faults.keys()) == (strict.faults["nan"], {"nan"})


def test_a_convention_that_was_asked_for_is_the_only_one() -> None:
    overflowing = compare.Table("FLOAT", "FLOAT8E4M3FN").arrays["overflowing"]
    assert verdict(lambda y: overflowing, "FLOAT", "FLOAT8E4M3FN").convention == "onnx-overflowing"
    assert verdict(lambda y: overflowing, "FLOAT", "FLOAT8E4M3FN", "onnx").wrong > 0


def test_outside_the_range_of_an_integer_c_says_nothing() -> None:
    def anything(y: Any) -> Any:
        return np.where(compare.Table("FLOAT", "INT8").kinds & 7, 99, y).astype(np.uint8)

    found = verdict(anything, "FLOAT", "INT8")
    assert (found.convention, found.wrong) == ("c-cast", 0)


def test_every_convention_has_results() -> None:
    """No convention names a column that no table has."""
    for dst in {pair.split(":")[1] for pair in PAIRS}:
        row = gpucast.dtype(dst)
        columns = set().union(*(read_columns(src, row) for src in ("FLOAT", "FLOAT16", "INT64") if src != dst))
        assert {each.column for each in conventions(manifest()["types"][dst])} <= columns, dst


def read_columns(src: str, dst: gpucast.DType) -> set[str]:
    return generate.cast_table(gpucast.dtype(src), dst).keys()


# ---- the command ----


def test_the_command_reports_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {kind: tmp_path / kind for kind in ("json", "junit", "html")}
    options = [text for kind, path in files.items() for text in (f"--{kind}", str(path))]
    assert main(["ml_dtypes", "--pairs", "DOUBLE:FLOAT8E5M2FNUZ", "INT16:FLOAT16", "FLOAT:FLOAT16", *options]) == 1
    said = capsys.readouterr().out
    assert "3 pairs" in said
    assert re.search(r"rounded twice, by way of float32 \([\d,]+\)", said)
    assert re.search(r"^    DOUBLE 0x\w{16} \(.*\) to FLOAT8E5M2FNUZ gives ", said, re.MULTILINE)
    tests = ElementTree.fromstring(files["junit"].read_text("utf-8")).findall("testsuite/testcase")
    assert [test.find("failure") is not None for test in tests] == [True, False, False]
    assert files["html"].read_text("utf-8").count("class=no") == 1
    cell = json.loads(files["json"].read_text("utf-8"))["modes"][""]["pairs"]["DOUBLE"]["FLOAT8E5M2FNUZ"]
    assert cell["faults"]["via-float"] > 0


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpucast", "--pairs", "FLOAT:FLOAT16"]) == 0
    (tmp_path / "broken.py").write_text("import a_library_that_is_not_there\n")
    assert main([str(tmp_path / "broken.py")]) == 2
    (tmp_path / "empty.py").write_text("def version(): return ''\ndef cast(*a): raise KeyError('none')\n")
    assert main([str(tmp_path / "empty.py"), "--pairs", "FLOAT:FLOAT16"]) == 2
    capsys.readouterr()
    assert main(["gpucast", "--case", "FLOAT:FLOAT8E4M3FN:0x43e80000"]) == 0
    assert (
        "FLOAT 0x43e80000 (464.0) to FLOAT8E4M3FN gives 0x7e (448.0)\n  onnx: 0x7e (448.0)\n" in capsys.readouterr().out
    )


def test_the_adapter_on_the_page_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (PACKAGE.parent / "README.md").read_text("utf-8")
    [text] = re.findall(r"```python\n(# mine.py.*?)```", page, re.DOTALL)
    assert len(text.splitlines()) < 30
    (tmp_path / "mine.py").write_text(text)
    assert main([str(tmp_path / "mine.py"), "--pairs", "FLOAT:FLOAT16", "DOUBLE:FLOAT16", "FLOAT:INT8"]) == 0
    assert "2 pairs" in capsys.readouterr().out
    [text] = re.findall(r"```python\n(# blocks.py.*?)```", page, re.DOTALL)
    (tmp_path / "blocks.py").write_text(text)
    assert main([str(tmp_path / "blocks.py")]) == 0
    assert "int8_tensor: of 2,048 elements 0 codes and 0 scales differ\n" in capsys.readouterr().out


def test_block_formats_are_compared_by_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gpucast's own results are the tables; a code, a scale and what stands beside infinity are seen apart."""

    def made(name: str, change: Any = None) -> Any:
        x = quantized.Blocks(name).input
        q = gpucast.quantize(x, name)
        codes = np.asarray(q.data.get() if isinstance(q.data, gpucast.PackedArray) else q.data, np.float64)
        parts = [codes, np.asarray(q.scales, np.float64), 1.0 if q.global_scale is None else q.global_scale]
        if change is not None:
            change(x, *parts[:2])
        return quantized.Blocks(name).compare(tuple(parts))

    for name in FORMATS:
        found = made(name)
        assert not report.differs(found) and not found["special"], name

    def code(x: Any, codes: Any, scales: Any) -> None:
        codes[3, 7] += 1

    def scale(x: Any, codes: Any, scales: Any) -> None:
        scales[np.isnan(x).any(axis=1).argmax(), :] = 5

    assert made("nvfp4", code)["codes"] == 1 and made("nvfp4", code)["first"].startswith("codes (3, 7): ")
    found = made("mxfp8e4m3", scale)
    finite = np.isfinite(quantized.Blocks("mxfp8e4m3").input).reshape(25, 8, 32).all(axis=2)
    assert (found["codes"], found["scales"], found["special"]) == (0, finite[22].sum(), True)
    # Numbers that come back, of an adapter without codes; the exit status says that they differ.
    x = quantized.Blocks("mxfp8e4m3").input
    assert quantized.Blocks("mxfp8e4m3").compare(gpucast.quantize(x, "mxfp8e4m3").dequantize())["numbers"] == 0
    (tmp_path / "zeros.py").write_text(
        "BLOCKS = ['nvfp4']\ndef version(): return ''\ndef quantize(x, name): return 0 * x\n"
    )
    assert main([str(tmp_path / "zeros.py")]) == 1
    assert re.search(r"nvfp4: of 3,072 elements [\d,]+ numbers differ\n    numbers \(0, 0\): ", capsys.readouterr().out)


def test_a_gpus_adapter_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's says what is missing; with NumPy in CuPy's place it gives the codes of NumPy's casts."""
    cupy = pytest.importorskip("cupy")
    runtime = cupy.cuda.runtime

    def absent(number: int) -> Any:
        raise runtime.CUDARuntimeError(100)

    monkeypatch.setattr(runtime, "getDeviceProperties", absent)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    with pytest.raises(ImportError, match="has no GPU here: cudaErrorNoDevice"):
        load("cupy")
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda number: {"name": b"a GPU"})
    adapter = load("cupy")
    monkeypatch.setattr(adapter.cupy, "asarray", Lent)
    found = run.run(adapter, "cupy", [""], [("FLOAT", "FLOAT16"), ("INT16", "FLOAT16")])[0]
    assert adapter.version().endswith(", a GPU")
    assert [verdict.wrong for verdict in found.pairs.values()] == [0, 0]


class Lent:
    """An array of NumPy with the methods of CuPy's."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def astype(self, dtype: Any) -> Lent:
        return Lent(self.x.astype(dtype))

    def get(self) -> Any:
        return self.x


@pytest.mark.parametrize("name", ["ml_dtypes", pytest.param("torch", marks=pytest.mark.peers)])
def test_three_lines_reproduce_a_case(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(name)
    adapter = load(name)
    found = run.run(adapter, name, [""], [("DOUBLE", "FLOAT8E5M2FNUZ")])[0].pairs["DOUBLE", "FLOAT8E5M2FNUZ"]
    case = found.worst["via-float"]
    lines = run.reproduction(name, adapter.LINES, getattr(adapter, "NAMES", None), case)
    assert len(lines.splitlines()) == 3
    exec(lines, {})
    assert capsys.readouterr().out == f"{case.got:#x}\n"
