# SPDX-License-Identifier: Apache-2.0
"""What loaders of quantized checkpoints ask for, and what others write: facts of their sources and of trials.

Where transformers is installed, it loads what is written here, and gives the numbers that gpucast gives.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from codes import assert_same
from gpucast import files
from scaled_files import convert, header, numbers, save

pytestmark = pytest.mark.usefixtures("folder")

BLOCKS = ["--to", "FLOAT8E4M3FN", "--scale", "block"]
STYLES = ("deepseek", "compressed-tensors")


def ignored(style: str) -> list[str]:
    config = json.loads(Path("out/config.json").read_text())["quantization_config"]
    names: list[str] = config["modules_to_not_convert" if style == "deepseek" else "ignore"]
    return names


def written(style: str, tensors: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The tensors of the file, and the layers that the config tells loaders to leave alone."""
    save("in/model.safetensors", tensors)
    Path("in/config.json").write_text("{}")
    assert convert("in", "out", *BLOCKS, "--style", style) == 0
    return header("out/model.safetensors"), ignored(style)


# ---- written ----


@pytest.mark.parametrize("style", STYLES)
def test_a_last_layer_that_shares_the_embedding_is_ignored(style: str) -> None:
    # transformers 5.23 made a quantized lm_head without scales where it was not ignored: logits of 1e31.
    tensors = {"model.embed_tokens.weight": numbers(8, 128), "model.l.weight": numbers(128, 128)}
    shared = {"deepseek": "lm_head", "compressed-tensors": "re:.*lm_head"}[style]
    assert written(style, tensors)[1] == ["model.embed_tokens", shared]
    shutil.rmtree("out")
    tensors["lm_head.weight"] = numbers(128, 128)
    assert written(style, tensors)[1] == ["lm_head", "model.embed_tokens"]


@pytest.mark.parametrize("style", STYLES)
def test_layers_that_vllm_builds_without_quantization(style: str) -> None:
    # models/qwen2_moe.py, llama4.py, deepseek_v2.py, deepseek_mtp.py: given float8, they would not ask for its scales.
    kept = ["mlp.gate", "mlp.shared_expert_gate", "feed_forward.router", "eh_proj", "shared_head.head"]
    kept += ["self_attn.indexer.weights_proj"]
    names = [f"model.layers.1.{name}" for name in kept]
    quantized = "model.layers.1.mlp.gate_proj"
    found, ignored = written(style, {f"{name}.weight": numbers(128, 128) for name in [*names, quantized]})
    assert {name for name, (kind, _) in found.items() if kind == "F8_E4M3"} == {f"{quantized}.weight"}
    assert set(ignored) >= set(names)
    assert quantized not in ignored


@pytest.mark.parametrize("style", STYLES)
def test_ragged_blocks_of_128x128_stay_as_they_are(style: str) -> None:
    # vLLM, utils/fp8_utils.py validate_fp8_block_shape; transformers, Fp8Dequantize: it divides the shape of the weight
    # by that of the scales, so that 200 rows had two blocks of 100.
    ragged = {"model.gate.up.weight": numbers(200, 128), "model.down.weight": numbers(128, 200)}
    whole = {"model.l.weight": numbers(256, 128)}
    # DeepSeek-V3 itself has 576 rows here.
    latent = {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight": numbers(192, 128)}
    found, ignored = written(style, {**ragged, **whole, **latent})
    assert {name for name, (kind, _) in found.items() if kind == "F8_E4M3"} == {*whole, *latent}
    assert set(ignored) >= {"model.gate.up", "model.down"}


@pytest.mark.parametrize("style", STYLES)
def test_experts_that_are_kept_are_named_as_their_layer(style: str) -> None:
    # vLLM, is_layer_skipped and should_ignore_layer: model.layers.0.mlp.experts.
    layer = "model.layers.{}.mlp.experts"
    tensors = {
        f"{layer.format(0)}.0.up_proj.weight": numbers(64, 128),
        f"{layer.format(1)}.gate_up_proj": numbers(2, 128, 128),
        f"{layer.format(2)}.0.up_proj.weight": numbers(64, 128),
        f"{layer.format(2)}.1.up_proj.weight": numbers(128, 128),
    }
    found, ignored = written(style, tensors)
    assert found[f"{layer.format(1)}.gate_up_proj"] == ("F32", [2, 128, 128])
    assert {layer.format(0), layer.format(1), f"{layer.format(0)}.0.up_proj"} <= set(ignored)
    # One of these is quantized.
    assert layer.format(2) not in ignored


# ---- transformers itself ----


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("package", "options"),
    [
        ("accelerate", [*BLOCKS, "--style", "deepseek"]),
        ("compressed_tensors", ["--to", "INT4", "--scale", "block", "--style", "compressed-tensors"]),
        ("compressed_tensors", ["--to", "INT8", "--scale", "per-channel", "--style", "compressed-tensors"]),
    ],
)
def test_transformers_reads_the_numbers_that_gpucast_reads(package: str, options: list[str], tied: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip(package)
    if torch.cuda.is_available():
        pytest.skip("transformers dequantizes without a GPU alone")
    # 200: ragged blocks.
    sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 200, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": tied, "dtype": "float32"}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes, **heads))
    model.save_pretrained("in", max_shard_size="100KB")
    assert convert("in", "out", *options) == 0
    assert convert("out", "back", "--to", "FLOAT") == 0
    logits = []
    for path in ("out", "back"):
        loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, output_loading_info=True
        )
        assert not any(info.values())
        with torch.no_grad():
            logits.append(loaded.eval()(torch.arange(8)[None]).logits.numpy())
    assert_same(logits[0], logits[1])


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", ["FLOAT8E4M3FN", "FLOAT6E2M3", "FLOAT4E2M1"])
def test_compressed_tensors_reads_mx_as_gpucast_does(to: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from safetensors.torch import load_file

    save("in/model.safetensors", {"l.weight": numbers(66, 160)})
    Path("in/config.json").write_text("{}")
    assert convert("in", "out", "--to", to, "--scale", "mx", "--style", "compressed-tensors", "--verify", "all") == 0
    assert convert("out", "back", "--to", "FLOAT") == 0
    config = json.loads(Path("out/config.json").read_text())["quantization_config"]
    try:
        compressor = BaseCompressor.get_value_from_registry(config["format"])
    except KeyError:
        pytest.skip(f"this version of compressed-tensors has no {config['format']}")
    scheme = QuantizationScheme.model_validate(config["config_groups"]["group_0"])
    stored = {name.removeprefix("l."): x for name, x in load_file("out/model.safetensors").items()}
    found = compressor.decompress(stored, scheme)["weight"].to(torch.float32).numpy()
    # Codes of 8 bits are multiplied in BFLOAT16 there, which holds them.
    assert_same(found, files.load("back/model.safetensors")["l.weight"])
