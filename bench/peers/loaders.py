# SPDX-License-Identifier: Apache-2.0
"""Small models, converted in every style and loaded by transformers: ``python -m bench.peers.loaders``.

For each family and style, with random weights: the cosine of the logits of the loaded model and those of the original,
and their largest difference from the logits of the model that `gpucast convert` brought back to FLOAT, over the largest
logit. Experts are stored one by one, as transformers saves them. It runs on a CPU where torch, transformers, accelerate
and compressed-tensors are installed. The figures go to bench/results/loaders.json, which docs/checkpoints.md shows.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.quantization import Array
from bench.report import markdown
from bench.revision import FOLDER
from gpucast import cli

RESULT = FOLDER / "loaders.json"
TOOLS = ("transformers", "compressed-tensors", "torch")
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
_LATENT = {"q_lora_rank": 128, "kv_lora_rank": 112, "qk_nope_head_dim": 64, "qk_rope_head_dim": 16, "v_head_dim": 64}
#: By name: the class of the config in transformers, and what differs from `_SIZES`.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", {}),
    "Llama, shared embedding": ("LlamaConfig", {"tie_word_embeddings": True}),
    "Qwen2-MoE": ("Qwen2MoeConfig", _EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 128}),
    "Qwen3-MoE": ("Qwen3MoeConfig", _EXPERTS | {"num_experts": 4, "head_dim": 64}),
    "Mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "DeepSeek-V3": (
        "DeepseekV3Config",
        _EXPERTS
        | _LATENT
        | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4},
    ),
}
_OF_COMPRESSED = (
    ("FLOAT8E4M3FN", "per-channel"),
    ("FLOAT8E4M3FN", "block"),
    ("FLOAT8E4M3FN", "mx"),
    ("FLOAT6E2M3", "mx"),
    ("FLOAT4E2M1", "mx"),
    ("FLOAT4E2M1", "nvfp4"),
    ("INT8", "per-channel"),
    ("INT4", "block"),
    ("UINT4", "block"),
)
#: Type, scale and style.
STYLES = (("FLOAT8E4M3FN", "block", "deepseek"), *((*one, "compressed-tensors") for one in _OF_COMPRESSED))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.loaders", description=__doc__)
    parser.add_argument("--out", default=str(RESULT), metavar="FILE", help="the figures (default: %(default)s)")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only these (may be repeated)")
    given = parser.parse_args(arguments)
    rows = []
    for family in given.family or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            rows += tried(family, Path(folder))
    figures = {"tools": {tool: importlib.metadata.version(tool) for tool in TOOLS}, "rows": rows}
    Path(given.out).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(figures))
    return 0


def tried(family: str, folder: Path) -> list[dict[str, Any]]:
    """A row for each style: cosine and difference, or the loader's error."""
    import torch
    import transformers

    config, more = FAMILIES[family]
    torch.manual_seed(0)
    given = getattr(transformers, config)(**_SIZES | {"tie_word_embeddings": False, "dtype": "float32"} | more)
    transformers.AutoModelForCausalLM.from_config(given).save_pretrained(folder / "in")
    original = logits(folder / "in")
    rows = []
    for to, scale, style in STYLES:
        for made in ("out", "back"):
            shutil.rmtree(folder / made, ignore_errors=True)
        options = ["--to", to, "--scale", scale, "--style", style]
        row: dict[str, Any] = {"family": family, "style": " ".join(options[1::2])}
        try:
            _convert(folder / "in", folder / "out", *options)
            _convert(folder / "out", folder / "back", "--to", "FLOAT")
            loaded, back = logits(folder / "out"), logits(folder / "back")
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:100]}"
        else:
            lengths = np.linalg.norm(loaded) * np.linalg.norm(original)
            row["cosine"] = round(float(np.sum(loaded * original) / lengths), 4)
            row["difference"] = float(f"{np.abs(loaded - back).max() / np.abs(back).max():.2g}")
        rows.append(row)
    return rows


def _convert(*arguments: Any) -> None:
    if cli.main(["convert", *map(str, arguments), "--quiet"]):
        raise RuntimeError("gpucast convert failed")


def logits(path: Path) -> Array:
    """Of eight tokens, by the model of a folder; without a GPU the codes are dequantized as it is loaded."""
    import torch
    import transformers

    config = json.loads((path / "config.json").read_text(encoding="utf-8")).get("quantization_config", {})
    options: dict[str, Any] = {"dtype": torch.float32}
    if config.get("quant_method") == "compressed-tensors":
        options["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
        # It multiplies MX and NVFP4 in BFLOAT16 alone.
        if config["format"].startswith(("mx", "nv")):
            options["dtype"] = torch.bfloat16
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **options)
    wrong = {key: sorted(names)[:2] for key, names in info.items() if names}
    if wrong:
        raise RuntimeError(f"transformers reports {wrong}")
    with torch.no_grad():
        found: Array = model.eval()(torch.arange(8)[None]).logits.float().numpy().astype(np.float64)
    return found


def table(figures: dict[str, Any]) -> str:
    """Markdown: a row for each style, a column for each family."""
    families = list(dict.fromkeys(row["family"] for row in figures["rows"]))
    styles = list(dict.fromkeys(row["style"] for row in figures["rows"]))
    cells = {(row["style"], row["family"]): _cell(row) for row in figures["rows"]}
    rows = ([f"`{style}`", *(cells[style, family] for family in families)] for style in styles)
    return markdown.table(["`--to`, `--scale`, `--style`", *families], rows)


def _cell(row: dict[str, Any]) -> str:
    return "fails" if "error" in row else f"{row['cosine']:.4f}, {row['difference']:.2g}"


if __name__ == "__main__":
    raise SystemExit(main())
