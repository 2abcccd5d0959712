# SPDX-License-Identifier: Apache-2.0
"""Every command on every page works: it is run on small files, and what the page prints below it comes out.

A command that cannot run here has its reason in `ELSEWHERE` or `PARSED`, and a command of neither fails.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gpucast
from gpucast import files
from gpucast.cli import main
from gpucast.cli.main import _parsed
from tests.proof.__main__ import _parser as _prover
from tests.proof.__main__ import main as prove

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(console|text|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Other programs, by how the command begins, and who runs them.
ELSEWHERE = {
    "python3 bench/start.py": ".ci/run",
    "pip install": ".ci/run, and bench/try_wheel.py",
    ".venv/bin/python -m": ".ci/run",
    "python -m pytest": ".ci/run",
    ".venv/bin/python docs/pages.py": "tests/project/test_docs.py",
    "python -m gpucast.host.build": "every installation",
    "python -W ignore -c": "test_adding_a_type_is_one_row",
    "gpucast dtypes --markdown | grep E2M5": "test_adding_a_type_is_one_row",
    "gpucast parity --backend kernels --pair DOUBLE:FLOAT8E2M5": "test_adding_a_type_is_one_row",
    "gpucast kernel FLOAT FLOAT8E2M5": "test_adding_a_type_is_one_row",
    "python examples/train_digits.py": "tests/project/test_examples.py",
    'python -c "import transformers': "tests/convert/test_convert_loaders.py",
    "vllm serve": "nobody: vLLM is too large for the tests; docs/checkpoints.md says what was tried by hand",
    "docker": "nobody here: it needs Docker and a GPU; tests/bench runs what the image starts",
}
#: The program that proves.
PROVER = "python -m tests.proof "
#: These take minutes, or a GPU. Their options are read, and nothing is run.
PARSED = (
    "gpucast bench",
    "gpucast parity --backend",
    "python -m tests.proof FLOAT:FLOAT8E4M3FN  ",
    "gpucast info",
    "python -m bench",
)


def commands(page: Path) -> list[tuple[str, str]]:
    """The commands of a page, and what it prints below each."""
    found = []
    for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
        for command, printed in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            found.append((command.replace("\\\n", ""), printed))
        if not language and re.match(r"(python3|pip|gpucast) ", block):
            found += [(line, "") for line in block.splitlines()]
    return found


COMMANDS = {page: found for page in PAGES if (found := commands(page))}


def starts(command: str, beginnings: object) -> bool:
    return any(command.startswith(beginning) for beginning in beginnings)  # type: ignore[attr-defined]


# ---- the files that the commands name ----


def bf16(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def model(folder: str, tensors: dict[str, np.ndarray], **config: object) -> None:
    Path(folder).mkdir()
    files.save(f"{folder}/model.safetensors", tensors)
    Path(folder, "config.json").write_text(json.dumps({"dtype": "bfloat16"} | config), encoding="utf-8")


def llama() -> None:
    model("llama", {"layers.0.q_proj.weight": bf16(256, 256), "layers.0.norm.weight": bf16(256)}, model_type="llama")


def converted(name: str, *options: str) -> None:
    if not Path("llama").exists():
        llama()
    assert main(["convert", "llama/", name, "--quiet", "--to", *options]) == 0


def deepseek() -> None:
    quantized = gpucast.quantize(bf16(128, 256).astype(np.float32), "float8e4m3fn_128x128")
    tensors = {"l.weight": quantized.codes, "l.weight_scale_inv": quantized.scales.astype(np.float32)}
    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    model("deepseek-v4", tensors, quantization_config=config)


def gpt_oss() -> None:
    blocks, scales = np.full((2, 8, 3, 16), 0x21, np.uint8), np.full((2, 8, 3), 126, np.uint8)
    model("gpt-oss-20b", {"e.w_blocks": blocks, "e.w_scales": scales}, quantization_config={"quant_method": "mxfp4"})


def onnx_model() -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(bf16(64, 8).astype(np.float32), "weight")
    half = onnx.numpy_helper.from_array(np.float16([0.5]), "half.bias")
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Cast", ["half.bias"], ["bias"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["product", "bias"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, n]) for name, n in (("x", 64), ("y", 8))]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], [weight, half])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), "model.onnx")


BLOCKS = ("FLOAT8E4M3FN", "--scale", "block", "--style")
FILES: dict[str, Callable[[], None]] = {
    "model.safetensors": lambda: files.save("model.safetensors", {"w": bf16(64, 64).astype(np.float32)}),
    "flux.safetensors": lambda: files.save("flux.safetensors", {"blocks.0.weight": bf16(128, 128)}),
    "model.onnx": onnx_model,
    "llama/": llama,
    "llama-bf16/": lambda: converted("llama-bf16/", "BFLOAT16"),
    "model-mxfp4/": lambda: converted("model-mxfp4/", "FLOAT4E2M1", "--scale", "mx", "--style", "compressed-tensors"),
    "llama-fp8/": lambda: converted("llama-fp8/", *BLOCKS, "deepseek"),
    "llama-from-trainer/": lambda: converted("llama-from-trainer/", *BLOCKS, "deepseek"),
    "llama-from-exporter/": lambda: converted("llama-from-exporter/", *BLOCKS, "compressed-tensors"),
    "deepseek-v4/": deepseek,
    "gpt-oss-20b/": gpt_oss,
}


# ---- the tests ----


def without_times(text: str) -> str:
    return re.sub(r"\d+(?:\.\d+)? s\b", "N s", text)


@pytest.fixture
def small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes the files that a command reads, in a folder of the test."""
    monkeypatch.chdir(tmp_path)

    def make(command: str) -> None:
        for name in shlex.split(command):
            if name in FILES and not Path(name).exists():
                FILES[name]()

    yield make


@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_do_what_the_page_says(
    page: Path,
    small_files: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command, printed in COMMANDS[page]:
        if starts(command, ELSEWHERE):
            continue
        if starts(command, PARSED):
            assert parsed(command.partition("#")[0]), command
            continue
        small_files(command)
        if library := re.match(r'python -c "import (\w+)', command):
            pytest.importorskip(library[1], reason=f"{library[1]} is not installed")
            exec(shlex.split(command)[2], {})
            continue
        if prover := command.startswith(PROVER):
            pytest.importorskip("bitwuzla", reason="bitwuzla is not installed")
            command = command.replace(PROVER, "gpucast ")
        launcher, found, arguments = command.partition("gpucast ")
        assert found and re.fullmatch(r"((srun|torchrun) .*)?", launcher), f"{command}: neither gpucast's nor listed"
        if launcher:
            # Of the processes that share the work this one does all.
            monkeypatch.setenv("RANK", "0")
            monkeypatch.setenv("WORLD_SIZE", "1")
        words = shlex.split(arguments, comments=True)
        if words[0] == "convert":
            # Pages show alternatives, too, with one OUT.
            shutil.rmtree(words[2], ignore_errors=True)
        code = (prove if prover else main)(words)
        out, err = capsys.readouterr()
        # As of the program `diff`, 1 says that something differs.
        assert code == 0 or (code, words[0], err) == (1, "diff", ""), f"{command}: {err}"
        if printed:
            assert without_times(out) == without_times(printed), command


def parsed(command: str) -> bool:
    """Whether the options of a command are right."""
    program, *words = shlex.split(command)
    if words[:2] == shlex.split(PROVER)[1:]:
        return _prover().parse_args(words[2:]) is not None
    if words[:2] == ["-m", "bench.static.digests"]:
        from bench.static.digests import _parser as _digests

        return _digests().parse_args(words[2:]) is not None
    if program == "python" or words[0] == "bench":
        from bench.__main__ import _parser

        return _parser().parse_args(words[2:] if program == "python" else words[1:]) is not None
    return _parsed(words) is not None


def test_every_reason_is_needed() -> None:
    every = [command for found in COMMANDS.values() for command, _ in found]
    for beginning in (*ELSEWHERE, *PARSED):
        assert starts(beginning, [beginning]) and any(command.startswith(beginning) for command in every), beginning


# ---- docs/extending.md: its row is added to a copy of the package, and its commands run there ----

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
#: Not run: every installation runs it, and it takes a minute or two.
BUILD = "python -m gpucast.host.build"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with the row of the page, and with the module that was built without it."""
    for folder in ("gpucast", "kernels"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (row,) = re.findall(r"^```text\n(.*\n)```$", PAGE, re.MULTILINE)
    table = tmp_path / "gpucast" / "core" / "dtypes" / "table.py"
    text = table.read_text(encoding="utf-8")
    assert text.count('\n""")\n') == 1
    # Whoever tries the page has the row already.
    if row not in text:
        table.write_text(text.replace('\n""")\n', f'\n{row}""")\n'), encoding="utf-8")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, command in (("gpucast", "-m gpucast"), ("python", "")):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n', encoding="utf-8")
        (bin_folder / name).chmod(0o755)
    return tmp_path


def test_adding_a_type_is_one_row(copy: Path) -> None:
    section = PAGE[PAGE.index("### Add one") : PAGE.index("## A rule belongs")]
    (block,) = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    environment = os.environ | {"PATH": f"{copy / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(copy)}
    steps = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE)
    assert steps[-1] == (BUILD, "") and len(steps) == 5
    for command, wanted in steps[:-1]:
        shell = ["sh", "-c", command]
        done = subprocess.run(shell, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        without_times = [re.sub(r"in \d+ s,", "in s,", text) for text in (done.stdout, wanted)]
        assert (done.returncode, without_times[0]) == (0, without_times[1]), (command, done.stderr)
