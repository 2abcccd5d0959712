# SPDX-License-Identifier: Apache-2.0
"""The `gpucast` command as a program: help, tables, info, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpucast
from gpucast.cli import info, main
from gpucast.core.dtypes import DTYPES
from gpucast.kernel import cache, nvidia
from gpucast.onnx.backend import fold_casts
from gpucast.quantization import RECIPES

ROOT = Path(__file__).parents[2]


def program(*argv: str, **keywords: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "gpucast", *argv]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, **keywords)


def test_names_that_the_terminal_cannot_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    np.savez(tmp_path / "x.npz", é=np.arange(3), w=np.ones(3))
    run = program("convert", "x.npz", "y.npz", "--to", "FLOAT", cwd=tmp_path)
    out, err = run.communicate()
    assert (run.returncode, err) == (0, "")
    assert out.startswith("left alone: '\\xe9' (INT64)\n")


#: A `sitecustomize` that interrupts the process when it imports a module.
INTERRUPT = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}: signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
#: What the command that pip installs looks like.
SCRIPT = "import sys\nfrom gpucast.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.mark.parametrize(
    ("started", "module"),
    [("script", "ml_dtypes"), ("module", "gpucast.casting.cast"), ("import", "gpucast.cli.warmup")],
)
def test_an_interruption_while_modules_are_imported(started: str, module: str, tmp_path: Path) -> None:
    """It is one line, whatever is imported; a program that is not ours gets its exception."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT.format(module=module))
    (tmp_path / "gpucast").write_text(SCRIPT)
    command = {
        "script": [str(tmp_path / "gpucast")],
        "module": ["-m", "gpucast"],
        "import": ["-c", "try:\n import gpucast.cli\nexcept KeyboardInterrupt:\n print('ours')"],
    }[started]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    run = subprocess.run(
        [sys.executable, *command, "dtypes"], env=environment, capture_output=True, text=True, check=False
    )
    wanted = (0, "ours\n", "") if started == "import" else (130, "", "gpucast: interrupted\n")
    assert (run.returncode, run.stdout, run.stderr) == wanted


def test_an_interrupted_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals at each call of a conversion: tests/fuzz/test_faults.py."""
    monkeypatch.setattr(info, "collect", lambda: signal.raise_signal(signal.SIGINT))
    assert main(["info"]) == 130
    assert capsys.readouterr() == ("", "gpucast info: interrupted\n")


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in [
        (["--help"], ["convert", "dtypes", "info"]),
        (["--version"], [gpucast.__version__]),
        (["cast", "--help"], ["--to", "--include", "--allow-loss", "--no-saturate"]),
    ]:
        with pytest.raises(SystemExit) as left:
            main(argv)
        assert left.value.code == 0
        printed = capsys.readouterr().out
        assert all(word in printed for word in words)
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2


def test_the_table_of_types(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtypes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["number"]) for row in rows] == [(row.name, row.number) for row in DTYPES]
    by_name = {row["name"]: row for row in rows}
    assert by_name["INT4"] == {
        "name": "INT4", "number": 22, "bits": 4, "layout": None, "bias": None, "min": -8, "max": 7, "smallest": None,
        "specials": None, "opset": 21, "numpy": "int4", "safetensors": None,
    }  # fmt: skip
    assert by_name["FLOAT8E4M3FN"] == {
        "name": "FLOAT8E4M3FN", "number": 17, "bits": 8, "layout": "1/4/3", "bias": 7, "min": -448.0, "max": 448.0,
        "smallest": 2.0**-9, "specials": "NaN, -0", "opset": 19, "numpy": "float8_e4m3fn", "safetensors": "F8_E4M3",
    }  # fmt: skip
    assert main(["dtypes"]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert main(["dtypes", "--markdown"]) == 0
    markdown = capsys.readouterr().out.splitlines()
    names, limits = plain[: 1 + len(DTYPES)], plain[2 + len(DTYPES) :]
    assert len(limits) == len(names) and max(map(len, plain)) <= 100
    assert len(markdown) == 2 + len(DTYPES)
    assert len({line.count("|") for line in markdown}) == 1
    for row, line, limit, cells in zip(DTYPES, names[1:], limits[1:], markdown[2:], strict=True):
        assert line.split()[0] == limit.split()[0] == row.name
        assert cells.startswith(f"| {row.name} | {row.number or ''} | ")
    assert "2^-127" in next(line for line in limits if line.startswith("FLOAT8E8M0"))


def test_recipes_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:-2]] == list(RECIPES) and max(map(len, table)) <= 100
    assert main(["recipes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["recipe"] for row in rows] == list(RECIPES)
    assert main(["recipes", "DeepGEMM", "te-nvfp4", "--json"]) == 0
    some = json.loads(capsys.readouterr().out)
    wanted = [row for row in rows if "deepgemm" in row["library"].lower() or "te-nvfp4" in row["recipe"]]
    assert some == wanted and 0 < len(some) < len(rows)
    assert main(["recipes", "te-nvfp4"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("recipe        te-nvfp4\nlibrary       TransformerEngine\n")
    assert max(map(len, printed.splitlines())) <= 100 and "\nsources       FLOAT" in printed
    assert main(["recipes", "deepgemm", "nobody"]) == 1
    out, error = capsys.readouterr()
    assert not out and error.startswith("gpucast recipes: no recipe has 'nobody' in its name or library; libraries: ")


def test_info(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUCAST_CACHE_DIR", str(tmp_path / "kept"))
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gpucast"] == gpucast.__version__
    assert facts["packages"]["numpy"] == np.__version__
    assert facts["cache"] == {"folder": str(tmp_path / "kept"), "exists": False, "writable": True}
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == facts["verdict"]
    assert str(tmp_path / "kept") in next(line for line in lines if line.startswith("cache"))
    monkeypatch.setattr(gpucast.kernel.devices, "unavailable", lambda: ("it sleeps", "run wake"))
    assert main(["info"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "GPU casts: no, because it sleeps; run wake"


def test_cupy_and_the_driver_must_fit() -> None:
    new, old = nvidia.DriverInfo((13, 0), ("cuda:0 H200",)), nvidia.DriverInfo((12, 4), ("cuda:0 H200",))
    both = {"cupy-cuda12x": "14.2", "cupy-cuda13x": "14.2"}
    for cupy, found, words in [
        (both, None, ["both installed", "pip uninstall -y cupy-cuda12x cupy-cuda13x", "gpucast[cuda12]"]),
        (both, old, ["both installed", "gpucast[cuda12]"]),
        (both, new, ["both installed", "gpucast[cuda13]"]),
        ({}, new, ["cupy is not installed", "gpucast[cuda13]"]),
        ({}, old, ["cupy is not installed", "gpucast[cuda12]"]),
        ({"cupy-cuda13x": "14.2"}, old, ["needs a driver for CUDA 13", "CUDA 12.4", "gpucast[cuda12]"]),
    ]:
        (line,) = info._cupy_advice(cupy, found)
        assert all(word in line for word in words), line
    for cupy, found in [
        ({"cupy-cuda12x": "14.2"}, old), ({"cupy-cuda12x": "14.2"}, new), ({"cupy-cuda13x": "14.2"}, new), ({}, None),
        ({}, nvidia.DriverInfo((12, 4), (), "no device")),
    ]:  # fmt: skip
        assert info._cupy_advice(cupy, found) == []


def fake_driver(version: int, names: list[str], error: int = 0) -> Any:
    """The functions of libcuda that `nvidia` calls, for a machine of our choice."""

    def put(place: Any, value: Any) -> int:
        getattr(place, "_obj", place).value = value
        return 0

    return SimpleNamespace(
        cuDriverGetVersion=lambda place: put(place, version),
        cuInit=lambda flags: error,
        cuDeviceGetCount=lambda place: put(place, len(names)),
        cuDeviceGet=put,
        cuDeviceGetName=lambda place, length, handle: put(place, names[handle.value].encode()),
        cuDeviceGetAttribute=lambda place, attribute, handle: put(place, {75: 9, 76: 0}[attribute]),
    )


def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvidia.describe(fake_driver(12040, ["NVIDIA H200", "NVIDIA H200"]))
    devices = ("cuda:0 NVIDIA H200 (sm_90)", "cuda:1 NVIDIA H200 (sm_90)")
    assert found == nvidia.DriverInfo((12, 4), devices, capabilities=((9, 0), (9, 0)))
    assert nvidia.describe(fake_driver(13000, [])).problem == "the driver finds no device"
    assert "CUDA error 100" in nvidia.describe(fake_driver(13000, [], error=100)).problem

    # Whether casts work is tested elsewhere; with this driver CuPy would be asked next.
    monkeypatch.setattr(gpucast.kernel.devices, "unavailable", lambda: ("it sleeps", "run wake"))
    machine = None
    monkeypatch.setattr(nvidia, "_load", lambda: machine)
    assert nvidia.find() is None
    assert "no NVIDIA driver" in info._as_text(info.collect())
    machine = fake_driver(13010, ["NVIDIA B200"])
    text = info._as_text(info.collect())
    assert "runs up to CUDA 13.1" in text
    assert "cuda:0 NVIDIA B200 (sm_90)" in text


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUCAST_CACHE_DIR", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for platform, xdg, wanted in [
        ("linux", None, ".cache/gpucast"),
        ("linux", str(tmp_path / "x"), "x/gpucast"),
        ("darwin", None, "Library/Caches/gpucast"),
        ("win32", None, "AppData/Local/gpucast/Cache"),
    ]:
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        if xdg:
            monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert cache.cache_folder() == str(tmp_path / wanted)
    (tmp_path / "file").write_text("")
    assert cache.writable(str(tmp_path / "new" / "deep"))
    assert not cache.writable(str(tmp_path / "file"))
    assert not cache.writable(str(tmp_path / "file" / "deep"))


# ---- gpucast fold: the file is what fold_casts makes of it (what that is: test_onnx_fold.py) ----


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("Cast", ["w"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16),
        helper.make_node("Add", ["half", "y"], ["z"]),
    ]
    values = [
        [helper.make_tensor_value_info(name, number, (2,))]
        for name, number in (("x", TensorProto.FLOAT), ("z", TensorProto.FLOAT16))
    ]
    weights = numpy_helper.from_array(np.array([0.1, 3], np.float32), "w")
    path = tmp_path / "in.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", *values, initializer=[weights])), path)
    return path


@pytest.mark.parametrize("name", ["out.onnx", "in.onnx"])
def test_a_model(model: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, target = fold_casts(onnx.load(model)), model.with_name(name)
    if target.exists():
        assert main(["fold", str(model), str(target)]) == 1
        assert "exists already; give --overwrite" in capsys.readouterr().err
    assert main(["fold", str(model), str(target), "--overwrite"]) == 0
    assert capsys.readouterr().out == f"{target}: 1 of 2 casts folded\n"
    assert onnx.load(target) == wanted


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data in (b"%PDF-1.7", b""):
        (tmp_path / "in.onnx").write_bytes(data)
        assert main(["fold", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]) == 1
        assert "in.onnx: is no ONNX model" in capsys.readouterr().err
    (tmp_path / "in.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 42\n")
    for source, target, said in (
        ("in.onnx", "out.onnx", "in.onnx: is a pointer of Git LFS"),
        ("in.onnx", "out.txt", "out.txt: a folded model is an .onnx file; expected a name that ends in .onnx"),
        ("", "out.onnx", ": is no regular file"),
        ("none.onnx", "out.onnx", "none.onnx: No such file"),
    ):
        assert main(["fold", str(tmp_path / source), str(tmp_path / target)]) == 1
        assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_tensors_in_other_files_stay_beside_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(onnx.load(model), model, save_as_external_data=True, size_threshold=0, location="data.bin")
    (model.parent / "other").mkdir()
    assert main(["fold", str(model), str(model.parent / "other" / "out.onnx")]) == 1
    assert "expected OUT in the same folder" in capsys.readouterr().err
    assert main(["fold", str(model), str(model.with_name("out.onnx"))]) == 0
    assert capsys.readouterr().out.endswith(": 0 of 2 casts folded; those of tensors in files beside it stay\n")


def test_casts_of_inputs_are_not_said_to_be_of_tensors_in_files(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = onnx.load(model)
    given.graph.node[0].input[0] = "x"
    onnx.save(given, model, save_as_external_data=True, size_threshold=0, location="data.bin")
    assert main(["fold", str(model), str(model.with_name("out.onnx"))]) == 0
    assert capsys.readouterr().out.endswith(": 0 of 2 casts folded\n")
    assert onnx.load(model.with_name("out.onnx")) == onnx.load(model)
