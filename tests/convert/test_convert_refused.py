# SPDX-License-Identifier: Apache-2.0
"""What `gpucast convert` refuses: one line of error each, and everything stays as it was."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from codes import assert_same
from conversions import contents, convert, failure, numbers
from gpucast import files

pytestmark = pytest.mark.usefixtures("folder")

E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
F8, I8 = numbers(6, 8).astype(E4M3), np.arange(-24, 24, dtype=np.int8).reshape(6, 8)
ROWS = np.arange(1, 7, dtype=np.float32)[:, None]
DENSE = numbers(200, 300).astype(E4M3)
FOUR = np.ones((4, 1), np.float32)


def words(*, width: int = 1, shape: Any = (4, 4), **more: Any) -> dict[str, Any]:
    """Codes in words of 32 bits, and the shape that they are said to have."""
    held = {"l.weight_packed": np.ones((4, width), np.int32), "l.weight_scale": FOUR, **more}
    return held if shape is None else held | {"l.weight_shape": np.array(shape)}


#: gpt-oss: two codes to a byte in blocks of 32, each with a scale.
HALVES = {"e.w_blocks": np.full((3, 7, 3, 16), 0x21, np.uint8), "e.w_scales": np.full((3, 7, 3), 126, np.uint8)}
#: ComfyUI's NVFP4, whose scales lie in whole tiles of 128 rows.
NVFP4 = {
    "l.weight": np.ones((16, 32), np.uint8),
    "l.weight_scale": np.ones((128, 4), E4M3),
    "l.weight_scale_2": np.float32(1),
    "l.comfy_quant": np.frombuffer(b'{"format": "nvfp4"}', np.uint8),
}


def without(held: dict[str, Any], name: str) -> dict[str, Any]:
    return {other: x for other, x in held.items() if other != name}


def blocks(shape: tuple[int, int], *grid: int) -> dict[str, Any]:
    return {"l.weight": np.ones(shape, E4M3), "l.weight_scale_inv": np.ones(grid, np.float32)}


# ---- scales that are not understood ----

#: The tensors of a file whose weights must not be cast as if their scales were not there, and what is said of them.
SCALES: dict[str, tuple[dict[str, Any], str]] = {
    "without its weight": (
        {"l.weight_scale_inv": np.ones((1, 1), np.float32)},
        "'l.weight_scale_inv' is named like scales",
    ),
    "of a wide weight": ({"l.weight": numbers(4, 4), "l.weight_scale": np.ones(1)}, "'l.weight_scale' is named like"),
    "wrong shape": ({"l.weight": F8, "l.weight_scale": np.ones((5, 1), np.float32)}, "have (5, 1); expected one scale"),
    "columns of a square": (
        {"l.weight": F8[:, :6], "l.weight_scale": np.ones((1, 6), np.float32)},
        "have (1, 6); expected one scale",
    ),
    "transposed": ({"l.weight": F8, "l.weight_scale": np.ones((1, 6), np.float32)}, "have (1, 6); expected one scale"),
    "too wide": ({"l.weight": F8, "l.weight_scale": np.ones(1)}, "its scales 'l.weight_scale' are F64"),
    "two kinds": (
        {"l.weight": F8, "l.weight_scale": ROWS[0], "l.weight_scale_inv": ROWS[0]},
        "has two scales, 'l.weight_scale' in ",
    ),
    "two global scales": (
        {"l.weight_packed": np.zeros((4, 8), np.uint8), "l.weight_scale": np.ones((4, 1)).astype(F8.dtype)}
        | dict.fromkeys(("l.weight_global_scale", "l.weight_scale_2"), ROWS[0]),
        "two global scales, 'l.weight_global_scale' and 'l.weight_scale_2'; expected one of them",
    ),
    "zero points of float8": (
        {"l.weight": F8, "l.weight_scale": ROWS[0], "l.weight_zero_point": np.zeros((4, 1), np.int8)},
        "zero points 'l.weight_zero_point' go with codes of integers",
    ),
    "no shape": (words(width=2, shape=None), "weight_shape is missing"),
    "a false shape": (words(width=2, shape=(4, -3)), "cannot hold the shape (4, -3)"),
    "an open width": (words(), "leave open how wide a code is"),
    # compressed-tensors 0.20, pack-quantized with 3 bits.
    "3 bits": (
        words(width=36, shape=(4, 384)) | {"l.weight_scale": np.ones((4, 3), np.float32)},
        "leave open how wide a code is",
    ),
    "reordered groups": (
        {"l.weight": F8, "l.weight_scale": ROWS, "l.weight_g_idx": np.zeros(8, np.int32)},
        "has an order of its groups",
    ),
    "no global scale": (
        {"l.weight_packed": np.ones((4, 8), np.uint8), "l.weight_scale": FOUR.astype(E4M3)},
        "in a form that is not known here",
    ),
    "one number, beside another": (
        {
            "l.weight_packed": np.ones((4, 16), np.uint8),
            "l.weight_scale": np.array(1, E4M3),
            "l.weight_global_scale": np.ones(1, np.float32),
        },
        "in a form that is not known here",
    ),
    "bytes of another kind": (
        {"l.weight": np.ones((4, 8), np.uint8), "l.weight_scale": FOUR},
        "in a form that is not known here",
    ),
    "groups of 64 codes of 4 bits": (
        {"l.weight_packed": np.ones((4, 64), np.uint8), "l.weight_scale": np.full((4, 2), 130, np.uint8)},
        "in a form that is not known here",
    ),
    "groups of two possible lengths": (
        {"l.weight": F8.repeat(25, 1), "l.weight_scale": np.ones((6, 2), np.float32)},
        "may be for groups of 100 or 128",
    ),
    "another name beside it": (
        {"l.weight": F8, "l.scale": np.ones((1, 1), np.float32)},
        "tensor 'l.scale' lies beside codes, and is no weight",
    ),
    "another name within it": (
        {"l.weight": F8, "l.weight.my_scaling": np.ones((1, 1), np.float32)},
        "tensor 'l.weight.my_scaling' lies beside codes",
    ),
    "GPTQ": (
        {"l.qweight": np.ones((4, 4), np.int32), "l.scales": np.ones((4, 4), np.float16)},
        "tensor 'l.qweight' is part of a weight by GPTQ, AWQ",
    ),
    "blocks of DeepSeek-V4, too many": (
        {"l.weight": DENSE, "l.scale": np.full((3, 3), 130, np.uint8).view(E8M0)},
        "has shape (200, 300)",
    ),
    "blocks of DeepSeek-V4 in a row": (
        {"l.weight": DENSE, "l.scale": np.full(6, 130, np.uint8).view(E8M0)},
        "has shape (200, 300)",
    ),
    # 8 bytes are 16 codes, but groups have 32.
    "experts of DeepSeek-V4": (
        {"l.w1.weight": I8, "l.w1.scale": np.full((6, 1), 2, E8M0)},
        "has scales, 'l.w1.scale', in a form that is not known",
    ),
    "rows or columns of squares": (
        {
            "m.experts.down_proj": np.ones((2, 48, 48), E4M3),
            "m.experts.down_proj_scale": np.ones((2, 48, 1), np.float32),
        },
        "equally many; Llama 4 means columns there, others rows; for rows say weight_block_size: [1, 48]",
    ),
    "blocks of two possible sizes": (blocks((100, 200), 2, 4), "may be for groups of 50 or 64"),
    "blocks of 96x96 or 128x128": (blocks((192, 192), 2, 2), "96 or 128; weight_block_size of a quantization_config"),
    "blocks of 100x100 or 128x128": (blocks((200, 200), 2, 2), "may be for groups of 100 or 128"),
    "blocks of 128x96 or 128x128": (blocks((256, 192), 2, 2), "may be for groups of 96 or 128"),
    "blocks of two possible sizes, ragged": (blocks((256, 96), 2, 2), "may be for groups of 48 or 64"),
    "blocks of 8": (blocks((100, 200), 1, 25), "have (1, 25); expected one scale"),
    "halves with fewer scales": (HALVES | {"e.w_scales": HALVES["e.w_scales"][:, :, :1]}, "w_scales"),
    "halves of other blocks": (HALVES | {"e.w_blocks": HALVES["e.w_blocks"][..., :8]}, "w_scales"),
    "halves with scales of another type": (HALVES | {"e.w_scales": np.ones((3, 7, 3), np.float32)}, "w_scales"),
    "halves without their scales": (without(HALVES, "e.w_scales"), "w_blocks"),
    "halves without their blocks": (without(HALVES, "e.w_blocks"), "w_scales"),
    **{
        f"ComfyUI without {part}": (without(NVFP4, part), "l.weight") for part in ("l.weight_scale", "l.weight_scale_2")
    },
    "ComfyUI's MXFP8 without whole tiles": (
        {
            "l.weight": np.ones((6, 32), E4M3),
            "l.weight_scale": np.full((6, 1), 130, np.uint8),
            "l.comfy_quant": np.frombuffer(b'{"format": "mxfp8"}', np.uint8),
        },
        "expected UINT8 (128, 4)",
    ),
    "ComfyUI without whole tiles": (NVFP4 | {"l.weight_scale": np.ones((16, 4), E4M3)}, "l.weight"),
    # ModelOpt 0.47, INT8_SMOOTHQUANT_CFG and INT4_AWQ_CFG.
    "ModelOpt with scaled inputs": (
        {"l.weight": F8, "l.weight_scale": np.float32(1), "l.pre_quant_scale": np.ones(8, np.float32)},
        "is for inputs times 'l.pre_quant_scale'",
    ),
    # torchao 0.18, flatten_tensor_state_dict; optimum-quanto 0.2.7.
    "torchao": (
        {"l._weight_qdata": F8, "l._weight_scale": ROWS},
        "'l._weight_scale' is part of a weight by optimum-quanto or torchao",
    ),
    "quanto": (
        {"l.weight._data": I8, "l.weight._scale": ROWS},
        "'l.weight._scale' is part of a weight by optimum-quanto or torchao",
    ),
    "ComfyUI's asym_w4a8_int8": (
        {"l.weight": I8, "l.weight_s_rel": F8, "l.weight_s_channel": np.ones(6, np.float32)},
        "is part of a weight by a form of ComfyUI",
    ),
}


@pytest.mark.parametrize("case", SCALES)
def test_codes_are_never_cast_as_if_they_had_no_scales(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    held, expected = SCALES[case]
    held = {name: np.asarray(x) for name, x in held.items()}
    files.save("in.safetensors", {**held, "norm": np.ones(3, np.float32)})
    before = contents(Path())
    assert expected in failure(capsys, "in.safetensors", "out.safetensors", "--to", "BFLOAT16")
    assert contents(Path()) == before
    if case != "two kinds":
        # Left alone on demand: all of it.
        exclude = [option for name in held for option in ("--exclude", name)]
        assert convert("in.safetensors", "out.safetensors", "--to", "BFLOAT16", *exclude) == 0
        found = files.load("out.safetensors")
        for name, x in held.items():
            assert_same(found[name], x)


@pytest.mark.parametrize(
    ("codes", "scale", "format"),
    [
        # comfy-kitchen 0.2.40 wrote these four: rotated weights, two codes to a byte, scales in another order.
        (I8, ROWS, {"format": "int8_tensorwise", "convrot": True}),
        (I8, ROWS, {"format": "int8_tensorwise", "params": {"convrot": True}}),
        (I8, ROWS[:, 0], {"format": "convrot_w4a4"}),
        (F8, np.float32(2), {"format": "float8_e5m2"}),
        (F8, np.float32(2), ["float8_e4m3fn"]),
        # Of which little is shown.
        (F8, np.float32(2), {"format": "n" * 100_000, "more": "m" * 100_000}),
    ],
)
@pytest.mark.parametrize("place", ["tensor", "metadata", "elsewhere"])
def test_formats_of_comfyui(codes: Any, scale: Any, format: Any, place: str, capsys: Any) -> None:
    held = {"l.weight": codes, "l.weight_scale": np.asarray(scale), "norm": np.ones(3, np.float32)}
    if place == "tensor":
        files.save("in.safetensors", {**held, "l.comfy_quant": np.frombuffer(json.dumps(format).encode(), np.uint8)})
    else:
        layers = {"l" if place == "metadata" else "another": format}
        files.save("in.safetensors", held, {"_quantization_metadata": json.dumps({"layers": layers})})
    message = failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT")
    assert "has ComfyUI's format" in message and len(message) < 1000
    assert os.listdir() == ["in.safetensors"]


# ---- folders, paths and options ----

PIPE, FOLDER, GONE = object(), object(), object()
INDEX, FIRST = "in/model.safetensors.index.json", "in/a.safetensors"
LINEAR = {"l.weight": numbers(128, 128), "model.embed_tokens.weight": numbers(8, 128)}
X = {"x": np.ones((4, 64), np.float32)}
HALF = "--to FLOAT16"
BLOCKS = "--to FLOAT8E4M3FN --scale block"
OUT_OF = "leads out of the folder"


def index(weight_map: Any, **more: Any) -> str:
    return json.dumps({"weight_map": weight_map} | more)


TWO = index({"x": "a.safetensors", "x.scales": "b.safetensors"})


CONFIG = {"in/config.json": '{"quantization_config": {}}'}
BLOCKED = {
    f"{name}.{part}": x
    for name in "lm"
    for part, x in (("weight", numbers(128, 128).astype(E4M3)), ("weight_scale_inv", np.ones((1, 1), np.float32)))
}


def block_sizes(size: Any) -> dict[str, Any]:
    """A model in blocks of 64x64, and what its config.json says of that."""
    held = {"l.weight": numbers(128, 128).astype(E4M3), "l.weight_scale_inv": np.ones((2, 2), np.float32)}
    config = json.dumps({"quantization_config": {"quant_method": "fp8", "weight_block_size": size}})
    return {INDEX: GONE, "in/b.safetensors": GONE, FIRST: held, "in/config.json": config}


#: What is put into the folder (tensors, text, a link to a path, a pipe) or taken away, the command, and its error.
#: The folder holds `in`, a checkpoint in two files with an index.
WORK: list[tuple[dict[str, Any], str, str]] = [
    # Names in an index, and links.
    *(
        ({INDEX: index({"a": name}), "x.safetensors": X}, f"{source} out {HALF}", OUT_OF)
        for name in ("../x.safetensors", "/x.safetensors", "sub/../../x.safetensors", "..\\x.safetensors")
        for source in ("in", INDEX)
    ),
    ({INDEX: index({"a": "C:\\x.safetensors"})}, f"{INDEX} out {HALF}", OUT_OF),
    ({INDEX: index({"a": ""})}, f"{INDEX} out {HALF}", "in/"),
    ({INDEX: index({"a": "a\0b"})}, f"{INDEX} out {HALF}", "in/"),
    ({INDEX: index({"a": "."})}, f"{INDEX} out {HALF}", "in/"),
    ({INDEX: index({"a": "no.safetensors"})}, f"in out {HALF}", "is missing"),
    ({FIRST: GONE}, f"in out {HALF}", "is missing"),
    ({INDEX: index({"a": ".h.safetensors"}), "in/.h.safetensors": X}, f"in out {HALF}", ".h.safetensors', a hidden"),
    ({INDEX: index({"z": "a.safetensors"})}, f"{INDEX} out {HALF}", "places 'z' in 'a.safetensors', which has no such"),
    ({INDEX: index([1])}, f"{INDEX} out {HALF}", "is no index"),
    ({INDEX: index({"a": 1})}, f"{INDEX} out {HALF}", "is no index"),
    ({INDEX: index({})}, f"{INDEX} out {HALF}", "weight_map is empty"),
    ({INDEX: index({"a": "config.json"}), "in/config.json": "{}"}, f"in out {HALF}", "expected .safetensors files"),
    ({INDEX: index({"a": "a.safetensors"}, metadata=[1])}, f"{INDEX} out {HALF}", "is no JSON object"),
    *(({INDEX: text}, f"in out {HALF}", "is no index") for text in ("", "[]", "{", "{" * 10000, "\xff")),
    ({INDEX: PIPE}, f"{INDEX} out {HALF}", "is no regular file"),
    ({FIRST: Path("../x.safetensors"), "x.safetensors": X}, f"in out {HALF}", f"is a link that {OUT_OF}"),
    ({FIRST: Path("../x.safetensors"), "x.safetensors": X}, f"{INDEX} out {HALF}", f"is a link that {OUT_OF}"),
    ({FIRST: Path("../nowhere")}, f"in out {HALF}", f"link that {OUT_OF}"),
    ({"in/loop": Path(".")}, f"in out {HALF}", "is a link to a folder"),
    ({"in/pipe": PIPE}, f"in out {HALF}", "no regular file"),
    ({"in/A.safetensors": X}, f"in out {HALF}", "'A.safetensors' and 'a.safetensors' would be one file"),
    (
        {"models--a--b/blobs/x": "", "models--a--b/snapshots/0/m.safetensors": Path("../../../in/a.safetensors")},
        f"models--a--b/snapshots/0 out {HALF}",
        "cp -rL",
    ),
    # Targets.
    ({}, f"no out {HALF}", "no: No such file or directory"),
    ({"out/x": "mine"}, f"in out {HALF}", "exists already; expected a new or empty folder"),
    ({"out": "mine"}, f"in out {HALF}", "exists already; expected a new or empty folder"),
    ({"out/.gpucast.json": PIPE}, f"in out {HALF}", "exists already; expected a new or empty folder"),
    ({"out/.gpucast.json": "[" * 100_000}, f"in out {HALF}", "exists already; expected a new or empty folder"),
    ({}, f"in in {HALF}", "lies in the folder in, which is to be converted"),
    ({}, f"in in/out {HALF}", "lies in the folder in, which is to be converted"),
    ({}, f"in no/out {HALF}", "no/out: No such file"),
    ({"out/x": "mine"}, f"{FIRST} out {HALF}", "unknown format"),
    ({"a.npz.partial": "mine"}, f"{FIRST} a.npz {HALF}", "is in the way, and nothing that gpucast left"),
    ({"a.npz.partial/x": "mine"}, f"{FIRST} a.npz {HALF}", "is in the way, and nothing that gpucast left"),
    ({"a.npz.partial/job.json": "[]"}, f"{FIRST} a.npz {HALF}", "is in the way, and nothing that gpucast left"),
    ({"out.partial": Path("other"), "other": FOLDER}, f"in out {HALF} --restart", "is in the way, and is a link"),
    ({}, f"in one.npy {HALF}", "is the name of a file"),
    ({}, f"{INDEX} one.NPZ {HALF}", "is the name of a file"),
    *(({}, f"in out.{end} {HALF}", f".{end} is a format that is not written") for end in ("gguf", "bin", "pt")),
    ({"full/x": "mine"}, f"full out {HALF}", "has no file of .safetensors"),
    ({"x.PT": "PK"}, f"x.PT out.safetensors {HALF}", "save them as .safetensors first"),
    ({"in/pytorch_model-00001-of-00002.bin": "PK"}, f"in out {HALF}", "00001-of-00002.bin: holds weights"),
    ({}, f"in out {HALF} --from INT8", "--from is for one file"),
    *(
        ({"out": FOLDER}, f"in out {HALF} --report {name}", "is read or written by the conversion itself")
        for name in (FIRST, INDEX, "out/a.safetensors")
    ),
    *(
        ({"link": Path("in/a.safetensors")}, f"{FIRST} out.safetensors {HALF} --report {name}", "conversion itself")
        for name in (FIRST, "./out.safetensors", "link")
    ),
    ({}, f"in out {HALF} --report no/r.json", "no/r.json: No such file or directory"),
    # Patterns.
    ({}, f"in out {HALF} --include w*", "no tensor matches --include 'w*'; it holds 'a', 'b'"),
    ({}, f"in out {HALF} --exclude w*", "no tensor matches --exclude 'w*'"),
    ({"in/norm.npz": {"l.norm.w": np.ones(3)}}, f"in out {HALF} --exclude norm", "did you mean '*norm*'?"),
    ({}, f"in out {HALF} --rule w*=keep", "no tensor matches --rule 'w*=keep'"),
    ({}, f"in out {HALF} --exclude *", "leave none of its 2 tensors to cast"),
    # Few bits need scales.
    ({}, "in out --to INT4", "'a' from FLOAT to INT4"),
    ({}, "in out --to FLOAT16 --rule b=FLOAT8E5M2", "give --scale"),
    # Scales that a type or a format lacks.
    ({}, "in out --to INT4 --scale nvfp4", "is not for INT4; expected per-tensor, per-channel, block or none"),
    ({}, "in out --to FLOAT8E8M0 --scale mx", "expected none"),
    ({}, "in out --to INT4 --scale block --no-saturate", "--saturate has no meaning"),
    ({}, "in out --to INT4 --scale block --rounding nearest_even", "--rounding has no"),
    *(({}, f"{FIRST} out{end} --to INT8 --scale block", ".safetensors files alone") for end in (".npz", ".npy", ".pb")),
    (
        {FIRST: X | {"x.scales": ROWS}, INDEX: GONE},
        "in out --to INT8 --scale block --include x --as-weights *",
        "two tensors would have the name 'x.scales'",
    ),
    (
        {FIRST: X, "in/b.safetensors": {"x.scales": ROWS}, INDEX: TWO},
        "in out --to INT8 --scale block --include x --as-weights *",
        "two tensors would have the name 'x.scales', in 'a.safetensors' and 'b.safetensors'",
    ),
    ({}, "in out --to FLOAT4E2M1 --scale nvfp4 --scale-rule up", "expected 'amax'"),
    ({}, "in out --to INT4 --scale block --scale-rule even", "expected 'amax' or 'full_range' or 'no_clipping'"),
    ({}, "in out --to UINT4 --scale block --scale-rule full_range", "for integers without zero points"),
    ({}, f"in out {BLOCKS} --scale-rule no_clipping", "for integers without zero points"),
    ({}, "in out --to BFLOAT16 --scale-rule up", "--scale-rule goes with --scale"),
    ({}, "in out --to BFLOAT16 --scale none --scale-rule up", "--scale-rule goes with --scale"),
    # Styles.
    ({}, "in out --to INT8 --scale block --style deepseek", "it holds FLOAT8E4M3FN with --scale block alone"),
    ({}, "in out --to FLOAT8E4M3FN --scale per-channel --style comfyui", "it holds FLOAT8E4M3FN and FLOAT8E5M2 with"),
    *(
        ({}, f"in out --to {to} --scale {scale} --style compressed-tensors", "cannot hold")
        for to, scale in (("FLOAT8E5M2", "block"), ("FLOAT6E3M2", "mx"), ("INT2", "block"), ("INT8", "per-tensor"))
    ),
    ({FIRST: LINEAR, INDEX: GONE}, f"in out {BLOCKS} --style deepseek", "needs the model's config.json"),
    ({}, f"in out {HALF} --style deepseek", "give --scale"),
    ({}, f"{FIRST} y.safetensors --to INT8 --scale block --style qdq", "--style qdq is for models (.onnx)"),
    ({"in/config.json": "[1]", FIRST: LINEAR, INDEX: GONE}, f"in out {BLOCKS} --style deepseek", "is no JSON object"),
    ({"in/config.json": "{}"}, f"in out {BLOCKS}", "deepseek (transformers, vLLM"),
    (
        {"in/config.json": "{}", FIRST: LINEAR, "in/b.safetensors": {"m.weight": numbers(4, 128)}, INDEX: GONE},
        "in out --to FLOAT8E4M3FN --scale mx --rule m.*=FLOAT4E2M1 --style compressed-tensors",
        "holds weights of one type",
    ),
    (
        {"in/config.json": "{}", FIRST: {"l.weight": numbers(128, 100)}, INDEX: GONE, "in/b.safetensors": GONE},
        f"in out {BLOCKS} --style deepseek",
        "need rows of a multiple of 128 elements",
    ),
    *(
        (
            {
                FIRST: {"l.weight": numbers(128, 128), "m.w_codes": np.ones((128, 64), np.uint8)},
                "in/config.json": '{"quantization_config": {"quant_method": "special"}}',
                INDEX: GONE,
            },
            f"in out {BLOCKS} --style {style}",
            "weights are quantized by 'special', which is not read here",
        )
        for style in ("gpucast", "deepseek", "compressed-tensors")
    ),
    *(
        (
            {FIRST: LINEAR, "in/config.json": text, INDEX: GONE},
            f"in out {BLOCKS} --style {style}",
            "in/config.json: model_type is 'gpt2', whose layers are Conv1D",
        )
        for style in ("deepseek", "compressed-tensors")
        # Of a part, too: a captioner of images has GPT-2 as its decoder.
        for text in (
            '{"model_type": "gpt2"}',
            '{"model_type": "vision-encoder-decoder", "decoder": {"model_type": "gpt2"}}',
        )
    ),
    *(
        (block_sizes(size), "in out --to FLOAT", f"weight_block_size is {size!r}; expected two lengths")
        for size in ([64], [64, 0], "64")
    ),
    (block_sizes([128, 32]), "in out --to FLOAT", "for each block of 128x32 (config.json)"),
    ({"in/config.json": "["} | block_sizes(None) | {"in/config.json": "["}, "in out --to FLOAT", "no JSON object"),
    (
        {FIRST: {"l.weight": F8, "m.weight": ROWS}, "in/b.safetensors": {"l.weight_scale": ROWS * np.inf}, INDEX: GONE},
        "in out --to BFLOAT16 --dry-run",
        "in/b.safetensors: 6 of the 6 scales 'l.weight_scale' are infinite or NaN",
    ),
    (
        {FIRST: {"l.weight": F8}, INDEX: GONE} | {f"in/{name}.safetensors": {"l.weight_scale": ROWS} for name in "bc"},
        "in out --to FLOAT",
        "l.weight_scale",
    ),
    # Recipes.
    ({}, "in out --to FLOAT8E5M2 --style deepgemm-128x128", "has codes of FLOAT8E4M3FN, not of FLOAT8E5M2; give --to"),
    (CONFIG, "in out --to FLOAT4E2M1 --style modelopt-nvfp4", "know no style that holds modelopt-nvfp4; of ModelOpt"),
    ({}, f"in out {BLOCKS} --style deepgemm-128x128", "leave --scale and --repack out"),
    (
        CONFIG | {FIRST: {"l.weight": numbers(128, 128).astype(np.float64)}, INDEX: GONE},
        "in out --to FLOAT8E4M3FN --style deepgemm-128x128",
        "deepgemm-128x128 is for arrays of FLOAT, FLOAT16, BFLOAT16, not of DOUBLE",
    ),
    # Scales that are kept in part.
    (
        CONFIG | {FIRST: BLOCKED, INDEX: GONE, "in/b.safetensors": GONE},
        "in out --to FLOAT --exclude m.weight",
        "cast them all, or none",
    ),
    # Random rounding.
    ({}, "in out --to BFLOAT16 --seed 1", "--seed N goes with --rounding stochastic"),
    ({}, "in out --to BFLOAT16 --rounding stochastic", "--seed N goes with --rounding stochastic"),
    ({}, "in out --to FLOAT --include a --rounding stochastic --seed 1", "does not apply to FLOAT"),
    ({}, "in out --to INT8 --scale block --rounding stochastic --seed 1", "does not apply to INT8"),
    # Files of another size.
    ({}, f"in x.safetensors {HALF} --shard-size 5GB", "--shard-size gives a folder"),
    ({"x.npy": X}, f"x.npy out {HALF} --shard-size 5GB", "--shard-size is for .safetensors files"),
    ({"in/b.safetensors": {"a": ROWS}, INDEX: GONE}, f"in one.safetensors {HALF}", "'a' is in in/a.safetensors, too"),
    ({"in/vae/v.safetensors": X}, f"in one.safetensors {HALF}", "holds more than the checkpoint of one index"),
    (
        {FIRST: LINEAR, INDEX: GONE},
        "in one.safetensors --to FLOAT8E4M3FN --scale block --style deepseek",
        "needs a config.json beside the weights; name a folder",
    ),
    ({}, f"in out {HALF} --shard 0/2 --restart", "would discard the work of the other shares"),
]


@pytest.mark.parametrize(("change", "command", "text"), WORK, ids=[row[1] for row in WORK])
def test_work_is_refused(change: dict[str, Any], command: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkdir("in")
    for name in "ab":
        files.save(f"in/{name}.safetensors", {name: np.ones((4, 64), np.float32)})
    Path(INDEX).write_text(index({name: f"{name}.safetensors" for name in "ab"}))
    for path, content in change.items():
        put(Path(path), content)
    before = contents(Path())
    assert text in failure(capsys, *command.split())
    assert contents(Path()) == before
    assert not [path for path in Path().glob("*.partial") if str(path) not in "".join(change)]


def put(path: Path, content: Any) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is PIPE:
        os.mkfifo(path)
    elif content is FOLDER:
        path.mkdir()
    elif isinstance(content, Path):
        path.symlink_to(content)
    elif isinstance(content, dict):
        files.save(str(path), content)
    elif content is not GONE:
        path.write_text(content, "latin-1")
