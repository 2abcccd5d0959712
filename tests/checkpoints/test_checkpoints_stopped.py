# SPDX-License-Identifier: Apache-2.0
"""A conversion stopped at each step: OUT is whole or as it was, and the same command goes on with what is finished."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from conversions import results_of
from gpucast import files
from onnx_models import save_external

BIG = np.linspace(-1, 1, 1 << 12, dtype=np.float32)


def cases(folder: Path) -> list[tuple[str, str]]:
    """Folders, and what is converted there: to a new folder, an empty one, over an old file, onto itself, to two files
    at once."""
    for name in ("sharded", "empty"):
        os.makedirs(folder / name / "in")
        for shard in "ab":
            files.save(str(folder / name / "in" / f"{shard}.safetensors"), {shard: BIG, f"{shard}2": BIG[:9]})
    (folder / "sharded" / "in" / "all.safetensors.index.json").write_text(
        json.dumps({"weight_map": {name: f"{name[0]}.safetensors" for name in ("a", "a2", "b", "b2")}})
    )
    (folder / "empty" / "out").mkdir()
    (folder / "single").mkdir()
    files.save(str(folder / "single" / "in.safetensors"), {"a": BIG, "b": BIG})
    files.save(str(folder / "single" / "out.safetensors"), {"old": np.arange(3)})
    save_external(folder / "model" / "in.onnx", BIG)
    return [
        ("sharded", "in out"),
        ("empty", "in out"),
        ("single", "in.safetensors out.safetensors"),
        ("single", "in.safetensors in.safetensors"),
        ("model", "in.onnx out.onnx"),
    ]


@pytest.mark.parametrize("how", ["kill", "kill and restart", "error", "interrupt"])
def test_a_run_stopped_at_any_step_leaves_all_or_nothing(how: str, tmp_path: Path, exhaustive: bool) -> None:
    told = []
    for name, argv in cases(tmp_path):
        command = ["convert", *argv.split(), "--overwrite", "--quiet", "--to"]
        # Another conversion, which takes the place of the one that was killed.
        again = {"again": [*command, "BFLOAT16", "--restart"]} if "restart" in how else {}
        if not again or len({*argv.split()}) == 2:
            known = {
                "argv": [*command, "FLOAT16"],
                "folder": str(tmp_path / name),
                "how": how.split(maxsplit=1)[0],
                **again,
            }
            told.append(known | {"every": 1 if exhaustive or (how == "kill" and not told) else 5})
    results = results_of("stopped_runs.py", told)
    assert [result["problems"] for result in results] == [[]] * len(told)
    # That the steps are seen, and what is finished is found.
    assert all(len(result["steps"]) > 30 and {"replace", "mkdir", "rmdir"} <= {*result["steps"]} for result in results)
    assert how != "kill" or all(result["resumed"] for result in results[:-1])
