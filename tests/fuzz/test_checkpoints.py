# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints with one thing wrong: converted to the numbers that their libraries give, or refused."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz import checkpoints, programs
from gpucast import cli, files

#: The mutants of each kind in each run of the tests, and with --exhaustive.
SOME, ALL = 20, 160


def ended(folder: Path) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = cli.main(["convert", str(folder / "in"), str(folder / "out"), "--to", "FLOAT"])
    return code, said.getvalue()


def wrong(made: checkpoints.Checkpoint, folder: Path) -> str:
    """What is wrong with a result; "" for nothing."""
    found = files.load(str(folder / "out/model.safetensors"))
    for name, numbers in made.numbers.items():
        if name not in found:
            return f"{name} is missing"
        if found[name].dtype != np.float32 or found[name].shape != numbers.shape or not _close(found[name], numbers):
            return f"{name} has other numbers"
    config = json.loads((folder / "out/config.json").read_text())
    if "quant" in json.dumps(config):
        return "config.json says that it is quantized"
    # No weight that was no weight.
    other = [name for name in found.keys() - made.numbers.keys() if not name.endswith(("_bias", "bias"))]
    return f"{other} went on" if other else ""


def _close(found: Any, numbers: Any) -> bool:
    # Some libraries round a product of scales before they multiply.
    return bool(np.allclose(found, numbers, rtol=1e-6, atol=0, equal_nan=True))


@pytest.mark.parametrize("kind", checkpoints.KINDS)
def test_a_mutant_is_converted_right_or_refused(kind: str, tmp_path: Path, exhaustive: bool) -> None:
    whole = checkpoints.make(kind)
    whole.save(tmp_path / "in")
    code, said = ended(tmp_path)
    assert code == 0, said
    assert wrong(whole, tmp_path) == ""
    codes: Counter[str] = Counter()
    for seed in range(ALL if exhaustive else SOME):
        for name in ("in", "out"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        made = checkpoints.mutant(kind, seed)
        made.save(tmp_path / "in")
        code, said = ended(tmp_path)
        codes[f"ended with {code}"] += 1
        if code:
            assert said.count("\n") == 1 and said.startswith("gpucast convert: "), (kind, seed, made.change, said)
            assert not (tmp_path / "out").exists()
        else:
            assert wrong(made, tmp_path) == "", (kind, seed, made.change)
    programs.noted(kind, **codes)
    # Most changes are seen, and what says nothing of weights is none.
    assert codes["ended with 1"] > 5


# ---- the libraries themselves ----


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind",
    [
        *("INT4", "UINT4", "INT8", "float8", "NVFP4", "MXFP4", "MXFP8"),
        *("fp8 blocks", "gpt-oss", "DeepSeek-V4", "ModelOpt", "ComfyUI"),
    ],
)
def test_the_numbers_are_those_of_the_library(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    from compressed_tensors.quantization import QuantizationScheme
    from safetensors.torch import load_file

    made = checkpoints.make(kind)
    made.save(tmp_path / "in")
    held = load_file(tmp_path / "in/model.safetensors")
    for name, numbers in made.numbers.items():
        module = name.removesuffix(".weight")
        parts = {one.removeprefix(f"{module}."): x for one, x in held.items() if one.startswith(f"{module}.")}
        if kind == "gpt-oss" and "experts" in name:
            from transformers.integrations.mxfp4 import convert_moe_packed_tensors

            found = convert_moe_packed_tensors(held[f"{name}_blocks"], held[f"{name}_scales"], dtype=torch.float32)
        elif (scales := parts.get("weight_scale_inv", parts.get("scale"))) is not None:
            from transformers.integrations.finegrained_fp8 import Fp8Dequantize

            found = Fp8Dequantize(None)._dequantize_one(parts["weight"], scales, torch.float32)
        elif "weight_scale_2" in parts:
            qtensor = pytest.importorskip("modelopt.torch.quantization.qtensor")
            packed = parts["weight"]
            tensor = qtensor.NVFP4QTensor(torch.Size(numbers.shape), torch.float32, packed)
            given = {"scale": parts["weight_scale"], "double_scale": parts["weight_scale_2"]}
            found = tensor.dequantize(torch.float32, **given, block_sizes={-1: 16})
        elif "comfy_quant" in parts:
            eager = pytest.importorskip("comfy_kitchen.backends.eager.quantization")
            found = eager.dequantize_per_tensor_fp8(parts["weight"], parts["weight_scale"], torch.float32)
        elif "weight_scale" in parts:
            assert made.section is not None
            scheme = QuantizationScheme.model_validate(made.section["config_groups"]["group_0"])
            compressor = compressors.BaseCompressor.get_value_from_registry(made.section["format"])
            found = compressor.decompress(parts, scheme)["weight"]
        else:
            continue
        # Scales of BFLOAT16 give BFLOAT16 there.
        exact = found.dtype == torch.float32
        np.testing.assert_allclose(found.to(torch.float32).numpy(), numbers, rtol=1e-6 if exact else 2**-8)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_experts_of_llama_4_are_stored_as_transformers_stores_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layout of codes and scales; fbgemm's kernel, which needs a GPU, is a formula here."""
    torch = pytest.importorskip("torch")
    fbgemm = pytest.importorskip("transformers.integrations.fbgemm_fp8")
    from safetensors.torch import save_file

    def by_rows(x: Any) -> Any:
        scales = x.abs().amax(-1) / 448
        return (x / scales[:, None]).to(torch.float8_e4m3fn), scales

    experts = fbgemm.FbgemmFp8Llama4TextExperts.__new__(fbgemm.FbgemmFp8Llama4TextExperts)
    monkeypatch.setattr(fbgemm, "quantize_fp8_per_row", by_rows, raising=False)
    monkeypatch.setattr(fbgemm, "get_module_from_name", lambda model, name: (experts, name.rpartition(".")[2]))
    made = checkpoints.make("Llama 4")
    held, wanted = {}, {}
    for name in made.numbers:
        if ".experts." in name:
            x = torch.from_numpy(made.numbers[name])
            held |= fbgemm.FbgemmFp8Quantize(None).convert({name: [x]}, model=None)
            wanted[name] = made.numbers[name]
            assert {one: tuple(part.shape) for one, part in held.items() if one.startswith(name)} == {
                one: made.tensors[one].shape for one in (name, f"{name}_scale")
            }
    (tmp_path / "in").mkdir()
    save_file({name: x.detach().contiguous() for name, x in held.items()}, tmp_path / "in/model.safetensors")
    (tmp_path / "in/config.json").write_text(json.dumps(made.config))
    code, said = ended(tmp_path)
    assert code == 0, said
    found = files.load(str(tmp_path / "out/model.safetensors"))
    for name, numbers in wanted.items():
        # Three bits of each number.
        np.testing.assert_allclose(found[name], numbers, rtol=1 / 15, atol=np.abs(numbers).max() / 448 / 64)
