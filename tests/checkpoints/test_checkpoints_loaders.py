# SPDX-License-Identifier: Apache-2.0
"""What loaders of quantized checkpoints ask for, and what others write: facts of their sources and of trials.

Where transformers is installed, it loads what is written here, and gives the numbers that gpucast gives.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same
from gpucast import files
from scaled_files import convert, failure, header, numbers, quantized, save
from tensors import leftovers

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


def test_nothing_that_a_style_takes(capsys: pytest.CaptureFixture[str]) -> None:
    save("in/model.safetensors", {"model.embed_tokens.weight": numbers(8, 128), "l.weight": numbers(128, 100)})
    Path("in/config.json").write_text("{}")
    message = failure(capsys, "in", "out", *BLOCKS, "--style", "deepseek")
    assert "none of its 2 tensors can be cast: loaders of style deepseek expect embeddings" in message
    assert "need rows of a multiple of 128 elements" in message


# ---- read ----

F8, I8 = numbers(6, 8).astype(ml_dtypes.float8_e4m3fn), np.arange(-24, 24, dtype=np.int8).reshape(6, 8)
ROWS = np.arange(1, 7, dtype=np.float32)[:, None]


def said(**format: Any) -> Any:
    return np.frombuffer(json.dumps(format).encode(), np.uint8)


@pytest.mark.parametrize(
    ("codes", "scale", "format"),
    [(F8, np.float32(2), "float8_e4m3fn"), (I8, np.float32(2), "int8_tensorwise"), (I8, ROWS, "int8_tensorwise")],
)
@pytest.mark.parametrize("place", ["tensor", "metadata"])
def test_formats_of_comfyui(codes: Any, scale: Any, format: str, place: str) -> None:
    held = {"m.l.weight": codes, "m.l.weight_scale": np.asarray(scale), "norm": np.ones(3, np.float32)}
    if place == "tensor":
        files.save("in.safetensors", {**held, "m.l.comfy_quant": said(format=format)})
    else:
        entry = json.dumps({"format_version": "1.0", "layers": {"l": {"format": format}}})
        files.save("in.safetensors", held, {"_quantization_metadata": entry})
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT") == 0
    with files.TensorFile("out.safetensors") as file:
        assert not file.metadata
    found = files.load("out.safetensors")
    assert found.keys() == {"m.l.weight", "norm"}
    assert_same(found["m.l.weight"], codes.astype(np.float32) * scale)


@pytest.mark.parametrize(
    ("codes", "scale", "format"),
    [
        (I8, ROWS, {"format": "int8_tensorwise", "convrot": True}),
        (I8, ROWS, {"format": "int8_tensorwise", "params": {"convrot": True}}),
        (I8, ROWS[:, 0], {"format": "convrot_w4a4"}),
        (np.ones((6, 32), np.int8).view(ml_dtypes.float8_e4m3fn), np.full((6, 1), 130, np.uint8), {"format": "mxfp8"}),
        (F8, np.float32(2), {"format": "float8_e5m2"}),
        (F8, np.float32(2), ["float8_e4m3fn"]),
    ],
)
@pytest.mark.parametrize("place", ["tensor", "metadata", "elsewhere"])
def test_formats_of_comfyui_that_are_refused(
    codes: Any, scale: Any, format: Any, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # comfy-kitchen 0.2.40 wrote the first four: weights that are rotated, two codes to a byte, scales in another order.
    held = {"l.weight": codes, "l.weight_scale": np.asarray(scale), "norm": np.ones(3, np.float32)}
    if place == "tensor":
        files.save("in.safetensors", {**held, "l.comfy_quant": np.frombuffer(json.dumps(format).encode(), np.uint8)})
    else:
        layers = {"l" if place == "metadata" else "another": format}
        files.save("in.safetensors", held, {"_quantization_metadata": json.dumps({"layers": layers})})
    assert "has ComfyUI's format" in failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT")
    assert leftovers(Path(), "in.safetensors") == []


def test_layers_of_which_the_metadata_tell_are_cast_together(capsys: pytest.CaptureFixture[str]) -> None:
    held = {f"{name}.{part}": x for name in "lm" for part, x in (("weight", F8), ("weight_scale", np.float32(2)))}
    layers = {name: {"format": "float8_e4m3fn"} for name in "lm"}
    files.save("in.safetensors", held, {"_quantization_metadata": json.dumps({"layers": layers})})
    message = failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT", "--exclude", "m.*")
    assert "cast all its weights, or none" in message


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_the_mark_of_older_files_of_comfyui(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    # comfy/utils.py convert_old_quants.
    held = {f"{prefix}{n}.{part}": x for n in "lm" for part, x in (("weight", F8), ("scale_weight", np.float32(2)))}
    files.save("in.safetensors", {**held, f"{prefix}scaled_fp8": np.empty(0, ml_dtypes.float8_e4m3fn)})
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT") == 0
    found = files.load("out.safetensors")
    assert found.keys() == {f"{prefix}l.weight", f"{prefix}m.weight"}
    assert_same(found[f"{prefix}l.weight"], F8.astype(np.float32) * 2)
    message = failure(capsys, "in.safetensors", "x.safetensors", "--to", "FLOAT", "--exclude", "*m.weight")
    assert "has the mark" in message


#: Files of other libraries in forms that are not known here, and the error for each.
UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    # Groups of 64 codes of 4 bits.
    "longer groups": (
        {"l.weight_packed": np.ones((4, 64), np.uint8), "l.weight_scale": np.full((4, 2), 130, np.uint8)},
        "in a form that is not known here",
    ),
    # compressed-tensors 0.20, pack-quantized with 3 bits.
    "3 bits": (
        {
            "l.weight_packed": np.ones((4, 36), np.int32),
            "l.weight_scale": np.ones((4, 3), np.float32),
            "l.weight_shape": np.array([4, 384]),
        },
        "leave open how wide a code is",
    ),
    # ModelOpt 0.47, INT8_SMOOTHQUANT_CFG and INT4_AWQ_CFG.
    "ModelOpt with scaled inputs": (
        {"l.weight": F8, "l.weight_scale": np.float32(1), "l.pre_quant_scale": np.ones(8, np.float32)},
        "is for inputs times 'l.pre_quant_scale'",
    ),
    # torchao 0.18, flatten_tensor_state_dict.
    "torchao": ({"l._weight_qdata": F8, "l._weight_scale": ROWS}, "'l._weight_scale' is named like a scale"),
    # optimum-quanto 0.2.7.
    "quanto": ({"l.weight._data": I8, "l.weight._scale": ROWS}, "'l.weight._scale' is named like a scale"),
    # As DeepSeek-V4, whose 8 bytes are 16 codes, but groups have 32.
    "experts of DeepSeek-V4": (
        {"l.w1.weight": I8, "l.w1.scale": np.full((6, 1), 2, ml_dtypes.float8_e8m0fnu)},
        "has scales, 'l.w1.scale', in a form that is not known",
    ),
    "ComfyUI's asym_w4a8_int8": (
        {"l.weight": I8, "l.weight_s_rel": F8, "l.weight_s_channel": np.ones(6, np.float32)},
        "is named like a scale",
    ),
}


@pytest.mark.parametrize("writer", UNKNOWN)
def test_what_others_write_is_not_cast_as_if_it_had_no_scales(writer: str, capsys: pytest.CaptureFixture[str]) -> None:
    held, expected = UNKNOWN[writer]
    files.save("in.safetensors", {key: np.asarray(x) for key, x in held.items()} | {"norm": np.ones(3, np.float32)})
    assert expected in failure(capsys, "in.safetensors", "out.safetensors", "--to", "BFLOAT16")
    assert leftovers(Path(), "in.safetensors") == []


def test_scales_that_transformers_writes_as_exponents() -> None:
    # Fp8Quantize with scale_fmt="ue8m0".
    q = quantized(numbers(256, 384), "FLOAT8E4M3FN", "block")
    exponents = np.asarray(q.scales).astype(ml_dtypes.float8_e8m0fnu)
    files.save("in.safetensors", {"l.weight": q.data, "l.weight_scale_inv": exponents})
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT") == 0
    factors = np.repeat(np.repeat(exponents.astype(np.float32), 128, 0), 128, 1)
    assert_same(files.load("out.safetensors")["l.weight"], q.data.astype(np.float32) * factors)


def test_the_older_config_of_modelopt_goes_with_the_scales() -> None:
    # vLLM, transformers_utils/config.py get_config: it is read where config.json has no quantization_config.
    save("in/model.safetensors", {"l.weight": F8, "l.weight_scale": np.float32(2)})
    Path("in/config.json").write_text(json.dumps({"quantization_config": {"quant_method": "modelopt"}}))
    Path("in/hf_quant_config.json").write_text("{}")
    Path("in/generation_config.json").write_text("{}")
    assert convert("in", "out", "--to", "FLOAT") == 0
    names = {path.name for path in Path("out").iterdir()} - {".gpucast.json"}
    assert names == {"model.safetensors", "config.json", "generation_config.json"}
    assert Path("out/config.json").read_text().strip() == "{}"
    # The config still describes scales that stay.
    save("in/other.safetensors", {"m": np.ones(4, np.float32)})
    assert convert("in", "kept", "--to", "FLOAT16", "--include", "m") == 0
    assert Path("kept/hf_quant_config.json").exists()


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


def pack(codes: Any) -> Any:
    raw = codes.view(np.uint8)
    return raw[..., 0::2] | raw[..., 1::2] << 4


def logits_of(path: str, **options: Any) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **options)
    assert not any(info.values()), info
    with torch.no_grad():
        return loaded.eval()(torch.arange(8)[None]).logits.float().numpy()


@pytest.mark.filterwarnings("ignore")
def test_transformers_reads_gpt_oss_as_gpucast_does() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    config = transformers.GptOssConfig(**sizes, **heads, dtype="bfloat16")
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained("in")
    tensors = files.load("in/model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        weight = np.ascontiguousarray(tensors.pop(name).transpose(0, 2, 1)).astype(np.float32)
        q = quantized(weight, "FLOAT4E2M1", "mx")
        tensors[f"{name}_blocks"] = pack(q.get().data.get()).reshape(*q.scales.shape, 16)
        tensors[f"{name}_scales"] = q.scales.view(np.uint8)
    save("in/model.safetensors", tensors, {"format": "pt"})
    document = json.loads(Path("in/config.json").read_text())
    document["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    Path("in/config.json").write_text(json.dumps(document))
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    whole = transformers.Mxfp4Config(dequantize=True)
    assert_same(logits_of("out"), logits_of("in", quantization_config=whole))


@pytest.mark.filterwarnings("ignore")
def test_transformers_reads_deepseek_v4_as_gpucast_does() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    if not hasattr(transformers, "DeepseekV4Config"):
        pytest.skip("this transformers has no DeepSeek-V4")
    sizes = {"vocab_size": 64, "hidden_size": 128, "moe_intermediate_size": 128, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "head_dim": 64, "q_lora_rank": 128, "n_routed_experts": 4, "o_groups": 2}
    sizes |= {"num_experts_per_tok": 2, "o_lora_rank": 64, "sliding_window": 16, "num_nextn_predict_layers": 0}
    kinds = {"mlp_layer_types": ["moe"] * 2, "layer_types": ["sliding_attention"] * 2}
    torch.manual_seed(0)
    config = transformers.DeepseekV4Config(**sizes, **kinds, partial_rotary_factor=0.5, dtype="bfloat16")
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained("in")
    tensors = files.load("in/model.safetensors")
    dense = [name for name in tensors if ".attn.w" in name or ".shared_experts." in name]
    routed = [name for name in tensors if ".experts." in name]
    assert len(dense) == 2 * 8 and len(routed) == 2 * 12
    for name in dense + routed:
        to, block = ("FLOAT8E4M3FN", (128, 128)) if name in dense else ("FLOAT4E2M1", (32,))
        format = gpucast.quantization.Format("v4", to, "FLOAT8E8M0", block, "up")
        q = gpucast.quantize(tensors[name].astype(np.float32), format)
        data = q.get().data
        tensors[name] = data if name in dense else pack(data.get()).view(np.int8)
        tensors[name.replace(".weight", ".scale")] = q.scales
    save("in/model.safetensors", tensors, {"format": "pt"})
    document = json.loads(Path("in/config.json").read_text())
    entry = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    document |= {"quantization_config": entry | {"expert_dtype": "fp4"}, "expert_dtype": "fp4"}
    Path("in/config.json").write_text(json.dumps(document))
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    # Without a GPU transformers dequantizes to BFLOAT16.
    assert_same(logits_of("out"), logits_of("in"))


@pytest.mark.filterwarnings("ignore")
def test_transformers_takes_the_type_that_the_weights_have() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "dtype": "float32"}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes, **heads))
    model.save_pretrained("in")
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    loaded = transformers.AutoModelForCausalLM.from_pretrained("out")
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}


def test_comfy_kitchen_reads_nvfp4_as_gpucast_does() -> None:
    torch = pytest.importorskip("torch")
    kitchen = pytest.importorskip("comfy_kitchen.backends.eager.quantization")
    files.save("in.safetensors", {"l.weight": numbers(144, 80)})
    options = ["--to", "FLOAT4E2M1", "--scale", "nvfp4", "--style", "comfyui"]
    assert convert("in.safetensors", "out.safetensors", *options) == 0
    assert convert("out.safetensors", "back.safetensors", "--to", "FLOAT") == 0
    written = {name: torch.from_numpy(x.view(np.uint8)) for name, x in files.load("out.safetensors").items() if x.ndim}
    scale = torch.from_numpy(np.array(files.load("out.safetensors")["l.weight_scale_2"]))
    blocks = written["l.weight_scale"].view(torch.float8_e4m3fn)
    found = kitchen.dequantize_nvfp4(written["l.weight"], scale, blocks, torch.float32).numpy()
    # It multiplies scale and scale first, in FLOAT.
    np.testing.assert_allclose(found, files.load("back.safetensors")["l.weight"], rtol=2**-22)
    # And what it writes is read.
    x = torch.from_numpy(numbers(64, 128, seed=3))
    scale = x.abs().max() / (448 * 6)
    data, blocks = kitchen.quantize_nvfp4(x, scale)
    layer = np.frombuffer(json.dumps({"format": "nvfp4"}).encode(), np.uint8)
    scales = {"l.weight_scale": blocks.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)}
    parts = {"l.weight": data.numpy(), "l.weight_scale_2": scale.numpy(), "l.comfy_quant": layer}
    files.save("k.safetensors", parts | scales)
    assert convert("k.safetensors", "k.npz", "--to", "FLOAT") == 0
    wanted = kitchen.dequantize_nvfp4(data, scale, blocks, torch.float32).numpy()
    np.testing.assert_allclose(files.load("k.npz")["l.weight"], wanted, rtol=2**-22)
