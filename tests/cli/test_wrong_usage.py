# SPDX-License-Identifier: Apache-2.0
"""Wrong use of the commands: code 2 and the usage for what argparse knows, code 1 and one line for all else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from gpucast.cli import main
from gpucast.kernel import cxx
from tensors import leftovers

CONVERT = ["convert", "x.npy", "y.npy"]
FLOAT = [*CONVERT, "--to", "FLOAT"]
#: No question about files that are there, or about scales.
CARELESS = ["--overwrite", "--scale", "none"]
KERNEL = ["kernel", "FLOAT", "INT8"]

USAGE: list[tuple[list[str], str]] = [
    (["dtypes", "--nonsense"], "usage: gpucast dtypes [options]"),
    ([*KERNEL, "more"], "usage: gpucast kernel SRC DST [options]"),
    ([*FLOAT, "--nonsense"], "usage: gpucast convert --to T IN OUT [options]"),
    ([*FLOAT, "--nonsense"], "gpucast convert: error: unrecognized arguments: --nonsense"),
    (CONVERT, "--to"),
    (["convert", "x.npy", "--to", "FLOAT"], "OUT"),
    ([*CONVERT, "--to", "float7"], "'float7' is not a dtype; did you mean FLOAT?"),
    ([*CONVERT, "--to", "i4"], "ambiguous"),
    ([*CONVERT, "--to", "complex64"], "complex"),
    ([*CONVERT, "--to", "99"], "99 is not a dtype"),
    ([*FLOAT, "--from", "STRING"], "no raw elements"),
    ([*FLOAT, "--round-mode", "sideways"], "sideways"),
    ([*FLOAT, "--rule", "a"], "'a' is no rule"),
    ([*FLOAT, "--rule", "=INT8"], "'=INT8' is no rule"),
    ([*FLOAT, "--rule", "a=float7"], "'float7' is not a dtype"),
    ([*FLOAT, "--scale", "no"], "'no' is not a value of --scale; expected one of none, per-tensor, "),
    ([*FLOAT, "--scale", "tensor"], "did you mean 'per-tensor'?"),
    ([*FLOAT, "--rounding", "neerest"], "did you mean 'nearest_even'?"),
    ([*FLOAT, "--style", "deepgem-ue8m0"], "did you mean 'deepgemm-ue8m0'?"),
    ([*FLOAT, "--style", "deepseak"], "did you mean 'deepseek'?"),
    (
        [*FLOAT, "--style", "vllm"],
        "is a loader, not a style; it reads compressed-tensors and deepseek. Styles: gpucast",
    ),
    ([*FLOAT, "--style", "OnnxRuntime"], "is a loader, not a style; it reads qdq."),
    ([*FLOAT, "--style", "xyz"], "is neither a style nor a recipe; `gpucast recipes` lists the recipes. Styles: "),
    ([*FLOAT, "--shard", "4/4"], "I from 0 to N - 1"),
    ([*FLOAT, "--shard", "1"], "'1' is no share of the work"),
    ([*FLOAT, "--shard", "auto"], "finds neither RANK and WORLD_SIZE nor SLURM_PROCID and SLURM_NTASKS"),
    (["parity", "--pair", "FLOAT"], "'FLOAT' is not a pair; expected SRC:DST such as FLOAT:INT8"),
    (["parity", "--pair", "FLOAT:FLOAT7"], "'FLOAT7' is not a dtype; did you mean FLOAT?"),
    (["parity", "--pair", "STRING:INT8"], "'STRING' is cast on the host only; expected a numeric type"),
    (["parity", "--pair", "FLOAT:INT8", "--full"], "leave out --pair"),
    (["parity", "--pair", "FLOAT:INT8", "--seconds", "3"], "leave out one of them"),
    (["parity", "--exhaustive"], "--exhaustive needs --pair"),
    (["parity", "--exhaustive", "--pair", "DOUBLE:FLOAT"], "DOUBLE:FLOAT has 2^64 codes; expected a source of 32 bits"),
    (["parity", "--exhaustive", "--full"], "not allowed with"),
    (["parity", "--seconds", "soon"], "'soon' is not a number of seconds"),
    (["parity", "--seed", "-1"], "'-1' is not a whole number from 0 on"),
    (["parity", "--threads", "0"], "'0' is not a whole number from 1 on"),
    (["parity", "--random", "many"], "'many' is not a whole number from 0 on"),
    (["parity", "--backend", "cuda"], "'cuda' is not a value of --backend; expected one of gpu, kernels, host"),
    (["parity", "--json", "x", "--picture", "x"], "are the same file"),
    (["warmup", "--pair", "FLOAT:8"], "'8' is cast on the host only; expected a numeric type"),
    (["warmup", "--types", "FLOAT", "STRING"], "'STRING' is cast on the host only; expected a numeric type"),
    (["warmup", "--types", "FLOAT", "--pair", "INT8:FLOAT"], "not allowed with argument --types"),
    (["warmup", "--jobs", "0"], "'0' is not a whole number from 1 on"),
]
WORK: list[tuple[list[str], str]] = [
    (["convert", "missing.npy", "y.npy", "--to", "FLOAT"], "missing.npy: No such file"),
    (["convert", "x.npy", "no/y.npy", "--to", "FLOAT"], "no/y.npy: No such file or directory: there is no folder no;"),
    (["convert", "x.npy", "y.bin", "--to", "FLOAT"], "y.bin: unknown format '.bin'"),
    ([*CONVERT, "--to", "INT4"], "cannot hold INT4, whose elements take 4 bits; write .npz"),
    ([*CONVERT, "--to", "BFLOAT16", "--opset", "9"], "opset=9"),
    ([*FLOAT, "--opset", "29"], "opset=29"),
    ([*FLOAT, "--overflow", "wrap"], "overflow='wrap' does not apply to FLOAT"),
    ([*FLOAT, "--device", "tpu"], "device='tpu'"),
    ([*FLOAT, "--report", ""], "'' is no name of a file"),
    ([*FLOAT, "--device", "cuda"], "the GPU sleeps; run wake"),
    (["convert", "x.pdf", "y.npy", "--to", "FLOAT"], "x.pdf: unknown format '.pdf'"),
    (["convert", "n.npz", "y.npz", "--to", "FLOAT"], "none of its 2 tensors is of a floating type; give --include"),
    (["convert", "0.npz", "y.npz", "--to", "FLOAT"], "holds no tensors"),
    (["convert", "0.npy", "y.npy", "--to", "FLOAT8E8M0", "--no-saturate"], "99 of its 100 values (99.0 %)"),
    (["parity", "--backend", "kernels"], "no C++ compiler; install "),
    (["convert", "bad.npy", "y.npy", "--to", "FLOAT"], "claims 24 bytes of data, the file holds 23"),
    (["kernel", "FLOAT", "STRING"], "FLOAT to STRING has no kernel; STRING is cast on the host"),
    ([*KERNEL, "--emit", "sass"], "there is no GPU here to compile for; give --arch, such as --arch sm_90"),
    ([*KERNEL, "--emit", "ptx", "--arch", "sm_91"], "'sm_91' is not an architecture that gpucast compiles for"),
    ([*KERNEL, "--emit", "cubin", "--arch", "compute_90"], "compute_90 gives PTX"),
    ([*KERNEL, "--opset", "99"], "opset=99"),
    ([*KERNEL, "--arch", "h100"], "--arch h100 does not apply to --emit source, whose text is the same for every"),
    ([*KERNEL, "-o", "/no/such/folder/file"], "/no/such/folder/file: No such file or directory"),
]


@pytest.mark.parametrize(("argv", "words"), USAGE, ids=lambda part: " ".join(part) if isinstance(part, list) else "")
def test_usage(argv: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert words in err
    # The usage in one line, the error, and where help is; not the usage of all options.
    assert len(err.splitlines()) == 3 and err.endswith(f"(see gpucast {argv[0]} --help)\n")
    assert leftovers(folder) == []


@pytest.mark.parametrize(("argv", "words"), WORK, ids=lambda part: " ".join(part) if isinstance(part, list) else "")
def test_work_that_fails(
    argv: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucast.kernel.nvidia.find", lambda: None)
    monkeypatch.setattr("gpucast.kernel.driver.unavailable", lambda: ("the GPU sleeps", "run wake"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(cxx, "package_folders", list)
    monkeypatch.delenv("CXX", raising=False)
    np.save("x.npy", np.ones(3))
    np.save("0.npy", np.array([0.0] * 99 + [1]))
    np.savez("0.npz")
    np.savez("n.npz", a=np.arange(3), b=np.arange(3))
    Path("x.pdf").write_bytes(b"%PDF-1.7")
    Path("bad.npy").write_bytes(Path("x.npy").read_bytes()[:-1])
    assert main([*argv, *CARELESS] if argv[0] == "convert" else argv) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"gpucast {argv[0]}: ") and err.count("\n") == 1
    assert words in err
    # Functions begin their errors with their own names: the command says its name once.
    assert not re.match(r"gpucast \w+: (cast|convert|kernel|parity|warmup): ", err)
    assert leftovers(folder, "x.npy", "bad.npy", "0.npy", "0.npz", "n.npz", "x.pdf") == []


@pytest.mark.parametrize(
    ("name", "found"),
    [("covnert", "expected one of bench, convert, "), ("covnert", "did you mean 'convert'?"), ("xyzzy", "warmup\n")],
)
def test_a_misspelt_command_names_the_nearest(name: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "a", "b"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"{name!r} is not a command; " in said and found in said
