# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that show a sign of quantization are closed: what is not understood stops the conversion, by name, and
the options that the error names decide. The names are those that public loaders and checkpoints have."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors

from codes import assert_same
from conversions import contents, convert, failure, model, numbers
from gpucast import files
from gpucast.cli import main
from gpucast.convert.scales import companions

pytestmark = pytest.mark.usefixtures("folder")

E4M3 = ml_dtypes.float8_e4m3fn
I8, ROWS = np.arange(-24, 24, dtype=np.int8).reshape(6, 8), np.arange(1, 7, dtype=np.float32)[:, None]
ONE, SIX = np.ones(1, np.float32), np.ones(6, np.float32)
LAYER = "model.layers.0.self_attn.q_proj"
CODES = {f"{LAYER}.weight": I8, f"{LAYER}.weight_scale": ROWS}
NUMBERS = I8.astype(np.float32) * ROWS
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
        }
    },
    "ignore": ["lm_head"],
}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3", "activation_scheme": "dynamic"}
F8 = {"l.weight": numbers(128, 128).astype(E4M3), "l.weight_scale_inv": np.ones((1, 1), np.float32)}


# ---- tensors beside codes ----

#: Names that change what the numbers of weights or layers are, or that nobody here knows.
REFUSED = (
    # Ascend modelslim (vllm-ascend, w8a8.py).
    *(f"{LAYER}.{last}" for last in ("deq_scale", "quant_bias", "input_offset", "weight_offset", "scale_bias")),
    # compressed-tensors' transforms; fp_quant, EXL3, QuIP#.
    *(f"{LAYER}.{last}" for last in ("R4_input.weight", "u_input.weight", "forward_hadamard_matrix", "suh", "SV")),
    # Orders of groups, and factors of inputs.
    *(f"{LAYER}.{last}" for last in ("perm", "q_invperm", "in_perm", "smooth_factor")),
    # Other quantizers.
    *(f"{LAYER}.{last}" for last in ("qzeros", "biases", "weight.absmax", "SCB", "weight._shift", "W_q", "codebooks")),
    *(f"{LAYER}.{last}" for last in ("wscales", "s1_scales", "svdquant_lora_a", "svd_up", "bitmask")),
    # Of stacked weights, whose parts are joined by "_".
    *(f"model.layers.0.mlp.experts.gate_up_proj_{last}" for last in ("scale_bias", "zero_bias", "scale_offset")),
    # Within the module of codes there is nothing but a bias, whatever it is called.
    *(f"{LAYER}.{last}" for last in ("lora_A.weight", "weight_foo", "scale", "norm.weight", "weight2")),
    # Elsewhere a weight needs a weight's name.
    "model.layers.0.foo", "secret_scales", "model.layers.0.mlp.weight_scale",
    # Named like scales of inputs and caches, but of no layer with codes, or of more than a number: they may be weights.
    "model.altup.input_scale", "model.layers.0.mlp.act_scale", "model.layers.0.self_attn.q_scale",
)  # fmt: skip
#: Names of scales that say nothing of weights.
BESIDE = (
    *(f"{LAYER}.{last}" for last in ("input_scale", "activation_scale", "act_scale", "input_zero_point")),
    *(f"{LAYER}.{last}" for last in ("input_global_scale", "scale_input", "output_scale")),
    *(f"{LAYER}.{last}" for last in ("activation_scaling_factor", "input_quantizer._amax")),
    *("model.layers.0.self_attn.qkv_input_scale", "model.layers.0.self_attn.gate_up_proj_input_scale"),
    *(f"model.layers.0.self_attn.{last}" for last in ("k_scale", "v_scale", "kv_scale", "q_scale", "attn.k_scale")),
    *(f"model.layers.0.self_attn.{last}" for last in ("k_proj.k_scale", "v_proj.output_scale", "qkv_proj.k_scale")),
    *(f"model.layers.0.self_attn.{last}" for last in ("kv_cache_scaling_factor", "fa_k.scale", "prob_scale")),
)  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_beside_codes_is_refused_by_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model({**CODES, "model.norm.weight": SIX, name: SIX}, quantization_config=INT8)
    before = contents(Path())
    said = failure(capsys, "in", "out", "--to", "BFLOAT16")
    assert f"tensor {name!r} " in said and "--keep PATTERN (as it is), --drop PATTERN, or --as-weights PATTERN" in said
    assert contents(Path()) == before
    for option, found in (("--keep", SIX), ("--drop", None), ("--as-weights", SIX)):
        assert convert("in", f"out{option}", "--to", "FLOAT", option, name) == 0
        held = files.load(f"out{option}/model.safetensors")
        assert_same(held[f"{LAYER}.weight"], NUMBERS)
        assert (name in held) == (found is not None)


@pytest.mark.parametrize("name", BESIDE)
def test_scales_of_inputs_and_caches_are_dropped_with_a_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model({**CODES, name: ONE}, quantization_config=INT8)
    assert main(["convert", "in", "out", "--to", "FLOAT"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("dropped, "))
    assert repr(name) in line
    assert files.load("out/model.safetensors").keys() == {f"{LAYER}.weight"}
    assert convert("in", "kept", "--to", "FLOAT", "--keep", name) == 0
    assert files.load("kept/model.safetensors").keys() == {f"{LAYER}.weight", name}


def test_scales_of_the_cache_go_on_where_the_style_has_them() -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    held = {f"{LAYER}.weight": numbers(128, 128).astype(E4M3), f"{LAYER}.weight_scale": ONE}
    cache = {f"model.layers.0.self_attn.{name}_scale": ONE for name in "kv"}
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}
    section = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group}}
    model({**held, **cache, f"{LAYER}.input_scale": ONE}, quantization_config={**section, "kv_cache_scheme": scheme})
    options = ["--to", "INT4", "--scale", "block", "--style", "compressed-tensors"]
    assert convert("in", "out", *options) == 0
    found = files.load("out/model.safetensors")
    assert cache.keys() <= found.keys() and f"{LAYER}.input_scale" not in found
    assert json.loads(Path("out/config.json").read_text())["quantization_config"]["kv_cache_scheme"] == scheme
    assert convert("out", "back", "--to", "FLOAT") == 0
    assert files.load("back/model.safetensors").keys() == {f"{LAYER}.weight"}


#: Says of float8 by ModelOpt, and by transformers.
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}


@pytest.mark.parametrize("section", [MODELOPT, STATIC], ids=["ModelOpt", "transformers"])
@pytest.mark.parametrize("scale", ["per-tensor", "per-channel", "block"])
def test_scales_of_inputs_go_on_where_the_style_has_them(section: Any, scale: str, capsys: Any) -> None:
    layers = (LAYER, LAYER.replace("q_proj", "v_proj"))
    held: dict[str, Any] = {"model.norm.weight": SIX, "lm_head.weight": numbers(128, 128)}
    for name in layers:
        held |= {f"{name}.weight": numbers(128, 128).astype(E4M3), f"{name}.weight_scale": ONE}
    inputs = {f"{name}.input_scale": np.float32(0.125 + i) for i, name in enumerate(layers)}
    cache = {f"{layers[1]}.v_scale": ONE} if "kv_cache_quant_algo" in section else {}
    options = ["--to", "FLOAT8E4M3FN", "--style", "compressed-tensors", "--scale", scale]

    def written(more: dict[str, Any], *chosen: str) -> tuple[set[str], Any]:
        model({**held, **more, **cache}, quantization_config=section)
        assert main(["convert", "in", "out", *options, *chosen]) == 0
        found = files.load("out/model.safetensors")
        # compressed-tensors has vectors of one.
        assert all(found[name].tolist() == [x] for name, x in (more | cache).items() if name in found)
        said = json.loads(Path("out/config.json").read_text())["quantization_config"]
        assert bool(said.get("kv_cache_scheme")) == bool(cache) and cache.keys() <= found.keys()
        shutil.rmtree("out")
        return {name for name in found if "input_scale" in name}, said["config_groups"]["group_0"]["input_activations"]

    found, activations = written(inputs)
    has_place = scale != "block"
    assert found == (inputs.keys() if has_place else set()) and activations["dynamic"] == (not has_place)
    assert ("dropped" in capsys.readouterr().out) == (not has_place)
    # All layers or none: where one has no such scale, or several, and where a layer gets codes for the first time.
    for more, chosen in (
        (dict(list(inputs.items())[:1]), ()),
        ({**inputs, f"{LAYER}.input_scale": SIX}, ()),
        (inputs, ("--rule", "lm_head.weight=FLOAT8E4M3FN", "--rule", "*proj.weight=FLOAT8E4M3FN")),
    ):
        found, activations = written(more, *chosen)
        assert not found and activations["dynamic"]
        assert ".input_scale'" in next(line for line in capsys.readouterr().out.splitlines() if "dropped" in line)


@pytest.mark.parametrize("row", companions.COMPANIONS, ids=lambda row: row.what)
def test_no_row_of_the_table_hides_another(row: companions.Companion) -> None:
    for pattern in row.names:
        name = re.sub(r"\[!?(\w)\w*-?\w?\]", lambda found: "o" if "!" in found[0] else found[1], pattern)
        assert companions.companion(name.replace("*", "model.layers.0.x")) is row, pattern


def test_a_plain_checkpoint_is_open() -> None:
    held = {"foo": SIX, "bar.any_name": ROWS, "ids": np.arange(4), "logit_scale": ONE}
    # An adapter, an activation of BigVGAN, a norm of queries, a mask of GPT-2, a buffer of a vision model.
    held |= {"q_proj.lora_A.weight": ROWS, "act.alpha": SIX, "attn.q_scale": SIX, "grid.indices": np.arange(6)}
    held |= {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.uint8), "l.rotation": ROWS, "layer_scales": SIX}
    model(held, model_type="llama")
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    assert files.load("out/model.safetensors").keys() == held.keys()


@pytest.mark.parametrize(
    "entry", [("quantization_config", '{"bits": 4}'), ("modelspec.quantization", "nf4"), ("tensor_names", '["l"]')]
)
def test_metadata_of_a_file_may_say_it(entry: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    files.save("in.safetensors", {"l.inner": ROWS}, dict([entry]))
    assert "tensor 'l.inner' lies beside codes" in failure(
        capsys, "in.safetensors", "out.safetensors", "--to", "BFLOAT16"
    )
    for name, text in (("format", "pt"), ("quantization", "none")):
        files.save("in.safetensors", {"l.inner": ROWS}, {name: text})
        assert convert("in.safetensors", "out.safetensors", "--to", "BFLOAT16") == 0


def test_codes_are_plain_numbers_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    model(F8, quantization_config=BLOCKS | {"quant_method": "special"})
    assert "--as-weights '*' takes all tensors for plain numbers" in failure(capsys, "in", "out", "--to", "FLOAT")
    assert convert("in", "out", "--to", "FLOAT", "--as-weights", "*") == 0
    found = files.load("out/model.safetensors")
    assert_same(found["l.weight"], F8["l.weight"].astype(np.float32))
    assert found.keys() == F8.keys() and Path("out/config.json").read_text().strip() == "{}"


# ---- codes without their scales ----


@pytest.mark.parametrize(
    "config", [{}, {"quantization_config": BLOCKS}, {"text_config": {"quantization_config": BLOCKS}}]
)
@pytest.mark.parametrize(
    "scale",
    [
        *(None, "l.weight_scale_inv_", "l.scale_inv_weight", "l.weight_scale2_inv.x", "l.weight.scale_inv"),
        *("l.weight_inv_scale", "l.weight_scaling_factor", "l.weights_scaling_factor", "l.w_scale", "l.weight_amax"),
        *("l.weight_scales", "l.weight_block_scale", "other.weight_scale_inv"),
    ],
)
def test_codes_without_their_scales_are_no_weights(scale: str | None, config: Any, capsys: Any) -> None:
    """unsloth 6200, miles 1641."""
    held = {
        "l.weight": F8["l.weight"],
        **({} if scale is None else {scale: F8["l.weight_scale_inv"]}),
        "norm.weight": SIX,
    }
    model(held, **config)
    said = failure(capsys, "in", "out", "--to", "BFLOAT16")
    assert "tensor 'l.weight' is F8_E4M3, which holds codes" in said or f"tensor {scale!r}" in said
    more = [] if scale is None else ["--drop", scale]
    assert convert("in", "out", "--to", "BFLOAT16", "--as-weights", "l.weight", *more) == 0
    assert_same(files.load("out/model.safetensors")["l.weight"], F8["l.weight"].astype(ml_dtypes.bfloat16))


def test_a_part_of_codes_alone_is_no_weight(capsys: pytest.CaptureFixture[str]) -> None:
    model(F8 | {"norm.weight": SIX}, quantization_config=BLOCKS)
    for options in ([], ["--rule", "l.*=keep"]):
        said = failure(capsys, "in", "out", "--to", "BFLOAT16", "--as-weights", "*_inv", *options)
        assert "--as-weights is for 'l.weight_scale_inv', a part of 'l.weight', whose numbers need it; name " in said
    # What the message says is done.
    assert convert("in", "left", "--to", "BFLOAT16", "--as-weights", "*_inv", "--exclude", "l.*") == 0
    assert files.load("left/model.safetensors")["l.weight_scale_inv"].dtype == np.float32
    assert convert("in", "out", "--to", "BFLOAT16", "--as-weights", "*_inv", "--as-weights", "l.weight") == 0
    assert files.load("out/model.safetensors")["l.weight_scale_inv"].dtype == ml_dtypes.bfloat16


# ---- config.json ----


@pytest.mark.parametrize(
    "places",
    [
        (),
        # Kimi-K2.5 and LLaVA, InternVL, Qwen-Omni, Janus, Whisper, ColPali, Mllama, GLM-4V, Chameleon.
        *(
            (name,)
            for name in ("text_config", "llm_config", "language_config", "decoder", "vlm_config", "vision_config")
        ),
        *((name, "text_config") for name in ("thinker_config", "talker_config", "vlm_config")),
        ("vision_config", "a_config", "b_config"),
    ],
)
@pytest.mark.parametrize("entry", ["quantization_config", "compression_config"])
def test_a_section_is_removed_wherever_it_stands(places: tuple[str, ...], entry: str) -> None:
    """Kimi-K2.5, transformers: NaN."""
    config: dict[str, Any] = {entry: BLOCKS}
    for place in places:
        config = {place: config, "dtype": "float32"}
    model(F8, **config)
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    text = Path("out/config.json").read_text()
    assert "quant" not in text and "compression" not in text and "float32" not in text
    # What is written anew stands where loaders look for it, and nowhere else.
    options = ["--to", "FLOAT8E4M3FN", "--scale", "block", "--style", "compressed-tensors", "--include", "l.weight"]
    assert convert("in", "ct", *options) == 0
    written = json.loads(Path("ct/config.json").read_text())
    assert written.pop("quantization_config")["quant_method"] == "compressed-tensors"
    assert "quant" not in json.dumps(written)


def test_other_files_of_quantizers_are_read_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    held = {"l.weight": numbers(128, 128).astype(E4M3), "l.weight_scale": ONE}
    model(held, model_type="llama")
    Path("in/hf_quant_config.json").write_text(
        '{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}'
    )
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    assert not Path("out/hf_quant_config.json").exists()
    Path("in/hf_quant_config.json").write_text('{"quantization": {"quant_algo": "W4A16_AWQ"}}')
    assert "quant_algo 'W4A16_AWQ' is not read here" in failure(capsys, "in", "x", "--to", "BFLOAT16")
    Path("in/hf_quant_config.json").rename("in/quant_model_description.json")
    assert "quantized by 'Ascend modelslim'" in failure(capsys, "in", "x", "--to", "BFLOAT16")


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json", "quant_config.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"quantization_config": {"quant_method"', "\xff"])
def test_files_that_cannot_be_read_stop_it(name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody knows then how the weights are quantized."""
    model({"l.weight": numbers(128, 128)})
    Path("in", name).write_text(text, "latin-1")
    said = failure(capsys, "in", "out", "--to", "BFLOAT16")
    assert f"in/{name}: is no JSON object" in said and "--as-weights '*' takes" in said
    assert not Path("out").exists()
    assert main(["inspect", "in"]) == 0 and f"{name}: is no JSON object" in capsys.readouterr().out
    assert convert("in", "out", "--to", "BFLOAT16", "--as-weights", "*") == 0


@pytest.mark.parametrize("levels", [101, 900, 5000])
@pytest.mark.parametrize("name", ["config.json", "quant_config.json", "model.safetensors.index.json"])
def test_a_file_that_is_nested_deep_is_named(name: str, levels: int, capsys: pytest.CaptureFixture[str]) -> None:
    model({"l.weight": numbers(128, 128)})
    Path("in", name).write_text('{"a":' * levels + "1" + "}" * levels)
    assert f"in/{name}: is nested " in failure(capsys, "in", "out", "--to", "BFLOAT16")
    assert main(["diff", "in", "in"]) == (name == "model.safetensors.index.json")
    assert "recursion" not in capsys.readouterr().err
    Path("in", name).write_text('{"weight_map": {"l.weight": "model.safetensors"}, "a":' + "[" * 98 + "]" * 98 + "}")
    if name != "quant_config.json":
        assert convert("in", "out", "--to", "BFLOAT16") == 0


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": "fp8"},
        {"compression_config": [{"quant_method": "gptq"}]},
        {"parts": [{"quantization_config": {"quant_method": "gptq"}}]},
        {"parts": [[{"quantization": {"bits": 4, "group_size": 64}}]]},
        {"quant_config": {"quant_method": "gptq"}},
    ],
    ids=str,
)
def test_a_section_of_another_form_or_in_a_list_stops_it(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model({"l.weight": numbers(128, 128)}, **config)
    said = failure(capsys, "in", "out", "--to", "BFLOAT16")
    assert "in/config.json: " in said and ("expected a JSON object" in said or "is not read here" in said)
    assert not Path("out").exists()


@pytest.mark.parametrize("config", [{"parts": [{"quantization_config": BLOCKS}]}, {"other_name": BLOCKS}], ids=str)
def test_a_section_in_a_list_or_under_another_name_is_removed(config: Any) -> None:
    model(F8, **config)
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    assert "quant_method" not in Path("out/config.json").read_text()


def test_parts_of_codes_are_neither_dropped_nor_kept_alone(capsys: pytest.CaptureFixture[str]) -> None:
    model(F8 | {"norm.weight": numbers(8)}, quantization_config=BLOCKS)
    for pattern in ("*_scale_inv", "l.weight"):
        said = failure(capsys, "in", "out", "--to", "BFLOAT16", "--drop", pattern)
        assert "a part of 'l.weight', whose numbers need it" in said and not Path("out").exists()
        assert convert("in", f"out {pattern}", "--to", "BFLOAT16", "--keep", pattern) == 0
        held = files.load(f"out {pattern}/model.safetensors")
        assert all(held[name].tobytes() == x.tobytes() for name, x in F8.items())
        assert "quant_method" in Path(f"out {pattern}/config.json").read_text()


@pytest.mark.parametrize(
    ("option", "name"),
    [
        *(
            (option, "l.weight_scale_inv")
            for option in ("--rule=*_inv=FLOAT16", "--rule=*ht_s*=keep", "--include=*_inv")
        ),
        ("--rule=*input_scale=FLOAT16", "l.input_scale"),
    ],
)
def test_an_option_that_names_a_part_alone_is_refused(option: str, name: str, capsys: Any) -> None:
    """It would say nothing: the name of the weight decides about its parts."""
    model(F8 | {"l.input_scale": ONE, "norm.weight": SIX}, quantization_config=BLOCKS)
    said = failure(capsys, "in", "out", "--to", "BFLOAT16", option)
    assert f" names {name!r}, " in said and repr(option.partition("=")[2]) in said
    assert "--as-weights PATTERN" in said and not Path("out").exists()
    # With the weight, or beside an option that keeps the part.
    assert convert("in", "out", "--to", "BFLOAT16", "--rule", "l.*=FLOAT16") == 0
    assert files.load("out/model.safetensors")["l.weight"].dtype == np.float16
    assert convert("in", "kept", "--to", "BFLOAT16", "--keep", name, "--include=norm.weight", option) == 0


def test_a_type_that_nobody_knows_may_be_of_codes(capsys: pytest.CaptureFixture[str]) -> None:
    files.save("m.safetensors", {"l.weight": np.zeros(8, np.uint8), "l.s": SIX, "norm.weight": SIX})
    raw = Path("m.safetensors").read_bytes()
    Path("m.safetensors").write_bytes(raw.replace(b'"U8"', b'"N4"'))
    assert "tensor 'l.weight' of N4 may hold packed codes" in failure(
        capsys, "m.safetensors", "out.safetensors", "--to", "BFLOAT16"
    )
    # Complex numbers are known, and kept.
    longer = raw[8:].replace(b'"U8"', b'"C64"').replace(b"[8]", b"[1]")
    Path("m.safetensors").write_bytes((int.from_bytes(raw[:8], "little") + 1).to_bytes(8, "little") + longer)
    assert convert("m.safetensors", "out.safetensors", "--to", "BFLOAT16") == 0


@pytest.mark.parametrize("codes", ["int32", "uint32", "int16", "uint16"])
def test_a_matrix_of_words_holds_codes(codes: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of packers that are not known here: 'l.s' would be cast, and no reader could tell."""
    held = {"l.words": np.arange(64).reshape(8, 8).astype(codes), "l.s": numbers(8, 1), "norm.weight": numbers(8)}
    files.save("m.safetensors", held)
    said = failure(capsys, "m.safetensors", "out.safetensors", "--to", "BFLOAT16")
    assert "tensor 'l.words' of " in said or "tensor 'l.s' lies beside codes" in said
    assert convert("m.safetensors", "out.safetensors", "--to", "BFLOAT16", "--exclude", "l.*") == 0
    held = {"a.position_ids": held["l.words"], "l.ids": np.arange(8).astype(codes), "l.s": held["l.s"]}
    files.save("m.safetensors", held)
    assert convert("m.safetensors", "plain.safetensors", "--to", "BFLOAT16") == 0


def test_sections_with_blocks_of_two_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    model(
        F8, vision_config={"quantization_config": BLOCKS | {"weight_block_size": [96, 96]}}, quantization_config=BLOCKS
    )
    assert (
        "[128, 128] elsewhere" in (said := failure(capsys, "in", "out", "--to", "FLOAT"))
        or "[96, 96] elsewhere" in said
    )
    assert not Path("out").exists()


#: What a section may say that tensors contradict, or that is not understood: the change, and a word of the error.
SAID: dict[str, tuple[dict[str, Any], str]] = {
    **{
        method: ({"quant_method": method, "bits": 4, "group_size": 128}, name)
        for method, name in (
            *(("gptq", "GPTQ"), ("awq", "AWQ"), ("bitsandbytes", "bitsandbytes"), ("gguf", "GGUF")),
            *((name, repr(name)) for name in ("hqq", "aqlm", "vptq", "quanto", "torchao", "auto-round", "quark")),
        )
    },
    "MLX": ({"group_size": 64, "bits": 4}, "MLX (affine)"),
    "a transform": (INT8 | {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}, "transform_config"),
    "sparsity": (INT8 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    "an unknown entry": (INT8 | {"spin": 1}, "'spin'"),
    "an unknown format": (INT8 | {"format": "marlin-24"}, "'marlin-24'"),
    "no groups": (INT8 | {"config_groups": {}}, "no group of config_groups"),
    "ignored": (INT8 | {"ignore": [LAYER]}, "is not quantized"),
    "ignored by a pattern": (INT8 | {"ignore": ["re:.*q_proj"]}, "is not quantized"),
    "ignored by a wildcard": (INT8 | {"ignore": ["model.layers.0*"]}, "is not quantized"),
    "ignored around it": ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers"]}, "is not quantized"),
    "no pattern": (INT8 | {"ignore": ["re:("]}, "a pattern is no regular expression"),
    "a list for a name": (INT8 | {"format": ["int-quantized"]}, "has values of other kinds"),
    "a layer of ModelOpt's": (
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {LAYER: {"quant_algo": "W4A8"}},
        },
        "quant_algo 'W4A8' is not read here",
    ),
    "groups of ModelOpt's": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "config_groups": INT8["config_groups"] | {"x": {"spin": 1}}},
        "'spin'",
    ),
    "not for it": ({"quant_method": "fp8", "modules_to_not_convert": [LAYER]}, "is not quantized"),
    "blocks of float8": (BLOCKS, "codes of FLOAT8E4M3FN"),
    "gpt-oss": ({"quant_method": "mxfp4"}, "codes of FLOAT4E2M1"),
    "ModelOpt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "codes of FLOAT4E2M1"),
}  # fmt: skip
GROUPS: dict[str, Any] = {
    "num_bits": 4, "type": "float", "symmetric": False, "strategy": "tensor", "dynamic": True, "actorder": "group",
    "scale_dtype": "torch.uint8", "rotation": "hadamard", "group_size": None,
}  # fmt: skip


@pytest.mark.parametrize("case", [*SAID, *GROUPS])
def test_a_section_that_is_not_understood_or_is_contradicted(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    section: Any
    if case in SAID:
        section, said = SAID[case]
    else:
        section, said = json.loads(json.dumps(INT8)), "config.json"
        weights = section["config_groups"]["group_0"]["weights"]
        weights[case] = GROUPS[case]
        if case == "group_size":
            weights |= {"strategy": "group", "group_size": 4}
    model({**CODES, "model.norm.weight": SIX}, quantization_config=section)
    assert said in failure(capsys, "in", "out", "--to", "BFLOAT16")
    assert not Path("out").exists()


# ---- plain casts of gpucast's own ----


@pytest.mark.parametrize("to", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E8M0", "FLOAT4E2M1", "INT8", "UINT8", "INT4"])
def test_plain_casts_are_read_back_without_an_option(to: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).integers(1, 5, (8, 16)).astype(np.float32)
    model({"l.weight": x, "m.any": 2 * x, "ids": np.arange(4)}, model_type="llama")
    assert convert("in", "out", "--to", to, "--scale", "none", "--allow-loss", "--rule", "m*=keep") == 0
    codes = files.load("out/model.safetensors")["l.weight"]
    # In shards of one tensor, and merged again: kept, and cast to another narrow type.
    assert convert("out", "shards", "--to", "FLOAT16", "--rule", "l*=keep", "--shard-size", "200") == 0
    assert convert("shards", "one.safetensors", "--to", to, "--scale", "none", "--allow-loss") == 0
    with files.TensorFile("one.safetensors") as file:
        assert {one.name: one.dtype.name for one in file.tensors if one.dtype}["ids"] == "INT64"
    for source in ("out", "shards", "one.safetensors"):
        target = "back.safetensors"
        assert convert(source, target, "--to", "FLOAT", "--overwrite") == 0
        found = files.load(target)
        assert_same(found["l.weight"], codes.astype(np.float32))
        assert found["m.any"].dtype == np.float32 and found["ids"].dtype.kind == "i"
    # Loaders of transformers ask for this entry where there are metadata.
    with safetensors.safe_open("out/model.safetensors", "np") as raw:
        assert raw.metadata().get("format") == "pt" or to == "INT4"
    # Without the entry they are codes again; integers of whole bytes are none.
    files.save("out/model.safetensors", {"l.weight": codes})
    if to.startswith("FLOAT8"):
        assert "which holds codes" in failure(capsys, "out", "x", "--to", "FLOAT")
