# SPDX-License-Identifier: Apache-2.0
"""A plan opens each file a few times, however many files there are, and reads each header as often."""

from __future__ import annotations

import builtins
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gpucast
from conversions import convert as command
from conversions import model, numbers
from gpucast import convert
from gpucast.cli import main
from gpucast.convert import Choice, Request
from gpucast.files import file_limits, save

pytestmark = pytest.mark.usefixtures("folder")

#: Files of a checkpoint, few and many.
FEW, MANY = 3, 12
SECTION = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
#: The type, scale and style that are asked for.
WISHES = {
    "cast": ("BFLOAT16", None, None),
    "blocks": ("FLOAT8E4M3FN", "block", "deepseek"),
    "groups with one scale": ("FLOAT4E2M1", "nvfp4", "compressed-tensors"),
}


def checkpoint(folder: str, count: int, quantized: bool) -> None:
    """One of `count` shards with an index and a config.json; `quantized`: each shard holds the scales of the next."""
    Path(folder).mkdir()
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    held: list[dict[str, Any]] = [{} for _ in names]
    for i in range(count):
        for part in "qkv":
            name, x = f"model.layers.{i}.self_attn.{part}_proj.weight", numbers(128, 128)
            if quantized:
                q = gpucast.quantize(x, "deepgemm-128x128")
                held[i][name], held[i - 1][f"{name}_scale_inv"] = q.data, q.scales
            else:
                held[i][name] = x
    for name, tensors in zip(names, held, strict=True):
        save(f"{folder}/{name}", tensors)
    places = {tensor: name for name, tensors in zip(names, held, strict=True) for tensor in tensors}
    Path(folder, "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    config = {"model_type": "llama"} | ({"quantization_config": SECTION} if quantized else {})
    Path(folder, "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("quantized", [False, True], ids=["numbers", "codes"])
@pytest.mark.parametrize("wish", WISHES)
def test_a_plan_reads_each_file_a_few_times(wish: str, quantized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, scale, style = WISHES[wish]
    request = Request(Choice(gpucast.dtype(kind)), {}, scale, asked_style=style)
    found = {}
    for count in (FEW, MANY):
        checkpoint(f"in{count}", count, quantized)
        with monkeypatch.context() as context:
            opened = counted(context, builtins, "open")
            parsed = counted(context, file_limits, "parsed_json")
            plan = convert.make_plan(f"in{count}", f"out{count}", request)
        assert len(plan.converted) == 3 * count
        shards = [times for path, times in opened.items() if path.endswith(".safetensors")]
        others = {Path(path).name: times for path, times in opened.items() if path.endswith(".json")}
        assert len(shards) == count
        # For its identity; and with its header for the list of all tensors, for its plan, and for the plan of the shard
        # whose scales it has.
        assert set(shards) == {3 + quantized}
        found[count] = others, parsed.total() - (2 + quantized) * count
    assert found[FEW] == found[MANY] and sum(found[MANY][0].values()) <= 8, found


def counted(context: pytest.MonkeyPatch, module: Any, name: str) -> Counter[str]:
    """How often a function is called, by its first argument."""
    calls, real = Counter[str](), getattr(module, name)

    def call(first: Any, *arguments: Any, **keywords: Any) -> Any:
        calls[str(first)] += 1
        return real(first, *arguments, **keywords)

    context.setattr(module, name, call)
    return calls


@pytest.mark.parametrize(
    "options",
    [
        "--to BFLOAT16",
        "--to INT8 --scale block --style compressed-tensors",
        "--to FLOAT8E4M3FN --scale block --style compressed-tensors --repack",
        "--to FLOAT4E2M1 --scale nvfp4 --style compressed-tensors",
    ],
)
def test_a_conversion_reads_as_many_headers_for_few_tensors_as_for_many(
    options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for count in (FEW, MANY):
        tensors: dict[str, Any] = {}
        for i in range(count):
            q = gpucast.quantize(numbers(128, 128), "deepgemm-128x128")
            tensors |= {f"l.{i}.weight": q.data, f"l.{i}.weight_scale_inv": q.scales}
        model(tensors, quantization_config=SECTION)
        with monkeypatch.context() as context:
            parsed = counted(context, file_limits, "parsed_json")
            assert command("in", f"out{count}", *options.split()) == 0
        found[count] = parsed.total()
    assert found[FEW] == found[MANY], found


def test_a_comparison_reads_each_header_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint("in", MANY, True)
    with monkeypatch.context() as context:
        opened = counted(context, builtins, "open")
        assert main(["diff", "in", "in", "--no-progress"]) == 0
    # By either side: once in the list of files, and once beside the codes of another shard.
    assert {times for path, times in opened.items() if path.endswith(".safetensors")} == {4}
