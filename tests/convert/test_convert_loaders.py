# SPDX-License-Identifier: Apache-2.0
"""What loaders of checkpoints ask for, of tensors and of config.json: facts of their sources and of trials.

Where transformers is installed, it loads what is written here, and gives the numbers that gpucast gives.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from codes import assert_same
from conversions import convert, header, model, numbers, save
from gpucast import convert as conversion
from gpucast import files
from gpucast.convert.scales.scaling import groups
from gpucast.core.dtypes import dtype

pytestmark = pytest.mark.usefixtures("folder")

BLOCKS = ["--to", "FLOAT8E4M3FN", "--scale", "block"]
STYLES = ("deepseek", "compressed-tensors")


def ignored(style: str) -> list[str]:
    config = json.loads(Path("out/config.json").read_text())["quantization_config"]
    names: list[str] = config["modules_to_not_convert" if style == "deepseek" else "ignore"]
    return names


def written(style: str, tensors: dict[str, Any], **config: Any) -> tuple[dict[str, Any], list[str]]:
    """The tensors of the file, and the layers that the config tells loaders to leave alone."""
    model(tensors, **config)
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
@pytest.mark.parametrize(
    ("kind", "head"), [("bert", "cls.predictions.decoder"), ("whisper", "proj_out"), ("distilbert", "vocab_projector")]
)
def test_last_layers_of_other_names_are_ignored_too(kind: str, head: str, style: str) -> None:
    # transformers 5.23 filled the scales of a quantized one with what was in memory: infinite logits, and NaN.
    tensors = {"embed.weight": numbers(8, 128), "encoder.l.weight": numbers(128, 128)}
    shared = {"deepseek": head, "compressed-tensors": rf"re:(.*\.)?{re.escape(head)}$"}[style]
    for config in ({"model_type": kind}, {"text_config": {"model_type": kind}}):
        assert shared in written(style, tensors, **config)[1]
        shutil.rmtree("out")
    assert not any(head in name for name in written(style, tensors, model_type="llama")[1])
    shutil.rmtree("out")
    # One of its own is quantized, as any layer.
    found, left = written(style, tensors | {f"{head}.weight": numbers(128, 128)}, model_type=kind)
    name = next(one for one in found if one.endswith(f"{head}.weight"))
    assert found[name][0] == "F8_E4M3" and not any(head in name for name in left)


@pytest.mark.parametrize("style", STYLES)
def test_layers_that_vllm_builds_without_quantization(style: str) -> None:
    # models/qwen2_moe.py, llama4.py, deepseek_v2.py, deepseek_mtp.py: given float8, they would not ask for its scales.
    kept = ["mlp.gate", "mlp.shared_expert_gate", "feed_forward.router", "eh_proj", "shared_head.head"]
    kept += ["self_attn.indexer.weights_proj", "mlp.gate.wg", "mlp.router_mlp.fc1", "transformer.query_feat"]
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
    latent = {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight": numbers(576, 128)}
    # Of which Fp8Dequantize would make two blocks of 80 rows.
    shorter = {"model.layers.1.self_attn.kv_a_proj_with_mqa.weight": numbers(160, 128)}
    found, ignored = written(style, {**ragged, **whole, **latent, **shorter})
    taken = {} if style == "deepseek" else shorter
    assert {name for name, (kind, _) in found.items() if kind == "F8_E4M3"} == {*whole, *latent, *taken}
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
        ("compressed_tensors", ["--to", "INT8", "--style", "compressed-tensors-int8-row"]),
        ("accelerate", ["--to", "FLOAT8E4M3FN", "--style", "deepgemm-128x128"]),
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
@pytest.mark.parametrize("kind", ["bert", "whisper"])
def test_transformers_reads_models_whose_last_layer_is_called_otherwise(kind: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    sizes: dict[str, Any]
    if kind == "bert":
        sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
        made: Any = transformers.BertForMaskedLM
        config, given = transformers.BertConfig(vocab_size=64, **sizes), {"input_ids": torch.arange(8)[None]}
    else:
        sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
        sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
        sizes |= dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 128)
        sizes |= {"max_source_positions": 8, "max_target_positions": 16, "num_mel_bins": 16, "pad_token_id": 0}
        sizes |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
        made = transformers.WhisperForConditionalGeneration
        config = transformers.WhisperConfig(vocab_size=64, **sizes)
        given = {"input_features": torch.ones(1, 16, 16), "decoder_input_ids": torch.arange(8)[None]}
    torch.manual_seed(0)
    made(config).save_pretrained("in")
    assert convert("in", "out", "--to", "INT8", "--scale", "per-channel", "--style", "compressed-tensors") == 0
    assert convert("out", "back", "--to", "FLOAT") == 0
    logits = []
    for path in ("out", "back"):
        loaded, info = made.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
        assert not any(info.values())
        with torch.no_grad():
            logits.append(loaded.eval()(**given).logits.numpy())
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

    model({"l.weight": numbers(66, 160)})
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


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("to", "scale"),
    [
        ("INT4", "block"),
        ("INT4", "per-channel"),
        ("INT8", "block"),
        ("INT8", "per-channel"),
        ("FLOAT8E4M3FN", "per-tensor"),
        ("FLOAT8E4M3FN", "per-channel"),
        ("FLOAT8E4M3FN", "block"),
        ("FLOAT8E4M3FN", "mx"),
        ("FLOAT4E2M1", "mx"),
    ],
)
def test_the_codes_are_those_that_compressed_tensors_gives(to: str, scale: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    from safetensors.torch import load_file

    x = torch.from_numpy(numbers(256, 384)).to(getattr(torch, kind))
    model({"l.weight": gpucast.cast(numbers(256, 384), "FLOAT" if kind == "float32" else "BFLOAT16")})
    assert convert("in", "out", "--to", to, "--scale", scale, "--style", "compressed-tensors", "--verify") == 0
    config = json.loads(Path("out/config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme.model_validate(config["config_groups"]["group_0"])
    rows, columns = {"per-tensor": (256, 384), "per-channel": (1, 384), "mx": (1, 32)}.get(scale, (1, 128))
    rows = 128 if (to, scale) == ("FLOAT8E4M3FN", "block") else rows
    blocks = x.reshape(256 // rows, rows, 384 // columns, columns)
    scales, zero = calculate_qparams(blocks.amin((1, 3)), blocks.amax((1, 3)), scheme.weights)
    scales, zero = (part.reshape(1) if scale == "per-tensor" else part for part in (scales, zero))
    state = {"weight": x, "weight_scale": scales, "weight_zero_point": zero}
    compressor = BaseCompressor.get_value_from_registry(config["format"])
    wanted = compressor.compress(state, scheme)
    for name, found in load_file("out/model.safetensors").items():
        own = wanted[name.removeprefix("l.")]
        assert torch.equal(found.view(torch.uint8), own.to(found.dtype).view(torch.uint8)), name


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("to", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1"])
def test_the_codes_are_those_that_comfy_kitchen_gives(to: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("comfy_kitchen")
    from comfy_kitchen.tensor import TensorCoreFP8Layout, TensorCoreNVFP4Layout
    from safetensors.torch import load_file

    torch_type = getattr(torch, kind)
    save("in.safetensors", {"l.weight": gpucast.cast(numbers(256, 384), kind)})
    scale = "nvfp4" if to == "FLOAT4E2M1" else "per-tensor"
    assert convert("in.safetensors", "out.safetensors", "--to", to, "--scale", scale, "--style", "comfyui") == 0
    layout = TensorCoreNVFP4Layout if to == "FLOAT4E2M1" else TensorCoreFP8Layout
    of_codes = {"dtype": torch.float8_e5m2} if to == "FLOAT8E5M2" else {}
    made = layout.quantize(torch.from_numpy(numbers(256, 384)).to(torch_type), **of_codes)
    found = load_file("out.safetensors")
    assert found.pop("l.comfy_quant").numel()
    own = {f"l.weight{end}": part for end, part in layout.state_dict_tensors(*made).items()}
    assert found.keys() == own.keys()
    for name, part in own.items():
        assert torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (found[name], part))), name


# ---- the config.json of a converted model ----


def config_written() -> Any:
    return json.loads(Path("out/config.json").read_text())


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_the_type_of_the_weights_is_told(key: str) -> None:
    model({"l.weight": numbers(4, 4)}, model_type="llama", **{key: "float32"}, text_config={key: "torch.float32"})
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    assert config_written() == {"model_type": "llama", key: "bfloat16", "text_config": {key: "bfloat16"}}
    shutil.move("out", "middle")
    assert convert("middle", "out", "--to", "FLOAT16") == 0
    assert config_written()[key] == "float16"


def test_numbers_stay_as_they_were_written() -> None:
    model({"l.weight": numbers(4, 4)})
    text = '{"dtype": "float32", "rope_theta": 1e400, "eps": 1.0E-05, "list": [0.10, {"a": -1e999}], "n": 12}'
    Path("in/config.json").write_text(text)
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    wanted = text.replace("float32", "bfloat16").replace(" ", "").replace("\n", "")
    assert re.sub(r"\s", "", Path("out/config.json").read_text()) == wanted


def test_the_type_of_most_numbers_counts() -> None:
    model({"l.weight": numbers(8, 8), "norm.weight": numbers(1, 4)}, dtype="float32", quantization_config=None)
    assert convert("in", "out", "--to", "BFLOAT16", "--include", "norm.weight") == 0
    assert Path("out/config.json").read_bytes() == Path("in/config.json").read_bytes()
    shutil.rmtree("out")
    assert convert("in", "out", "--to", "BFLOAT16", "--exclude", "norm*") == 0
    assert config_written() == {"dtype": "bfloat16", "quantization_config": None}


def test_a_snapshot_in_the_cache_of_hugging_face() -> None:
    blobs, snapshot = Path("models--a--b/blobs"), Path("models--a--b/snapshots/0123")
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    files.save("x.safetensors", {"l.weight": numbers(4, 4)})
    shutil.move("x.safetensors", blobs / "77")
    (blobs / "88").write_text('{"dtype": "float32"}')
    for name, blob in (("model.safetensors", "77"), ("config.json", "88")):
        os.symlink(f"../../blobs/{blob}", snapshot / name)
    assert convert(str(snapshot), "out", "--to", "BFLOAT16", "--verify") == 0
    assert config_written() == {"dtype": "bfloat16"}
    assert files.load("out/model.safetensors")["l.weight"].dtype.name == "bfloat16"


# ---- weights that loaders join into one layer ----


NVFP4 = ["--to", "FLOAT4E2M1", "--scale", "nvfp4", "--style", "compressed-tensors"]
LAYER = "model.layers.0.self_attn"


def shards(folder: str) -> list[str]:
    return list(map(str, Path(folder).glob("*.safetensors")))


def test_the_groups_are_those_of_the_loaders() -> None:
    names = [f"{LAYER}.{last}.weight" for last in ("q_proj", "k_proj", "v_proj", "o_proj")]
    names += ["l.mlp.gate_proj.weight", "l.mlp.up_proj.weight", "l.mlp.down_proj.weight", "m.mlp.up_proj.weight"]
    names += ["e.experts.0.w1.weight", "e.experts.0.w3.weight", "e.experts.1.w1.weight", "e.experts.0.w2.weight"]
    names += ["a.wq_a.weight", "a.wkv.weight", "w1.bias"]
    assert groups(names) == [names[:3], names[4:6], names[8:10], names[12:14]]


@pytest.mark.parametrize("among", ["one file", "several files"])
def test_joined_weights_get_one_global_scale(among: str) -> None:
    weights = {f"{LAYER}.{last}.weight": numbers(32, 64) * size for last, size in (("q_proj", 1), ("k_proj", 40))}
    weights[f"{LAYER}.v_proj.weight"] = numbers(16, 64) / 9
    weights[f"{LAYER}.o_proj.weight"] = numbers(32, 64) / 9
    parts = [weights] if among == "one file" else [{name: weight} for name, weight in weights.items()]
    for index, part in enumerate(parts):
        save(f"in/{index}.safetensors", part)
    Path("in/config.json").write_text("{}")
    assert convert("in", "out", *NVFP4, "--verify", "all") == 0
    written = {name: array for path in shards("out") for name, array in files.load(path).items()}
    scales = {name: float(written[f"{name}_global_scale"][0]) for name in weights}
    largest = max(float(np.abs(weight).max()) for weight in weights.values())
    own = float(np.abs(weights[f"{LAYER}.o_proj.weight"]).max())
    *joined, alone = scales.values()
    np.testing.assert_allclose(joined, [6 * 448 / largest] * 3, rtol=1e-6)
    np.testing.assert_allclose(alone, 6 * 448 / own, rtol=1e-6)
    # As vLLM reads it: every part of the joined layer by the largest global scale.
    assert convert("out", "back", "--to", "FLOAT") == 0
    for path in shards("back"):
        for name, array in files.load(path).items():
            factor = 1 if "o_proj" in name else scales[name] / max(joined)
            assert np.linalg.norm(array * factor - weights[name]) < 0.12 * np.linalg.norm(weights[name]), name


def test_a_weight_that_is_kept_does_not_count() -> None:
    weights = {f"l.{last}.weight": numbers(16, 64) * size for last, size in (("q_proj", 1), ("k_proj", 40))}
    model(weights)
    assert convert("in", "out", *NVFP4, "--exclude", "l.k_proj.weight") == 0
    (scale,) = files.load("out/model.safetensors")["l.q_proj.weight_global_scale"]
    np.testing.assert_allclose(scale, 6 * 448 / np.abs(weights["l.q_proj.weight"]).max(), rtol=1e-6)
    assert json.loads(Path("out/config.json").read_text())["quantization_config"]["ignore"][0] == "l.k_proj"


def test_a_change_of_a_joined_weight_elsewhere_is_noticed() -> None:
    save("in/a.safetensors", {"l.q_proj.weight": numbers(16, 64)})
    save("in/b.safetensors", {"l.k_proj.weight": numbers(16, 64)})
    Path("in/config.json").write_text("{}")
    choice = conversion.Choice(dtype("FLOAT4E2M1"))
    request = conversion.Request(choice, {}, "nvfp4", asked_style="compressed-tensors")
    plan = conversion.make_plan("in", "out", request)
    save("in/b.safetensors", {"l.k_proj.weight": numbers(16, 64, seed=1)})
    assert plan.files[0].changed() is not None
