# SPDX-License-Identifier: Apache-2.0
"""Weights that loaders join into one layer, for which NVFP4 has a single global scale.

vLLM joins the projections below and multiplies all of a joined layer by one global scale, the largest of them: schemes/
compressed_tensors_w4a4_nvfp4.py and compressed_tensors_w4a16_nvfp4.py (`weight_global_scale.max()`), modelopt.py.
The groups are those of llm-compressor, entrypoints/model_free/microscale.py DEFAULT_FUSED_MAPPINGS, and of vLLM's
models/deepseek_v2.py (fused_qkv_a_proj), deepseek_v4 (wq_a, wkv) and qwen3_5.py (in_proj_qkvz, in_proj_ba).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gpucast.checkpoints.scales.per_file import FileScales, read_as_numbers
from gpucast.checkpoints.streaming.pieces import extremes
from gpucast.files import FileError, TensorFile
from gpucast.files.tensor import Array

_JOINED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("wq_a", "wkv_a_with_mqa"),
    ("wq_a", "wkv"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)


@dataclass
class FusedGroup:
    """Weights that share a global scale; they may lie in several files."""

    #: The file of each weight, by name.
    paths: Mapping[str, str]
    #: Which tensors of those files are codes and scales.
    scales: Mapping[str, FileScales]
    _extremes: Array | None = field(default=None, repr=False)

    def extremes(self) -> Array:
        """As `gpucast.checkpoints.streaming.pieces.extremes`, of all the weights. FileError if one is gone."""
        if self._extremes is None:
            found = [self._of(name, path) for name, path in self.paths.items()]
            self._extremes = np.array([min(low for low, _ in found), max(high for _, high in found)])
        return self._extremes

    def _of(self, name: str, path: str) -> Array:
        with TensorFile(path) as file:
            for tensor in read_as_numbers(file.tensors, self.scales[path], path):
                if tensor.name == name:
                    return extremes(tensor, nan=False)
        raise FileError(f"{path}: tensor {name!r} is gone since the file was first looked at")


def groups(names: Iterable[str]) -> list[list[str]]:
    """The names of weights that loaders join, two or more in each list; a name is in one list at most."""
    modules = {name.removesuffix(".weight"): name for name in names if name.endswith(".weight")}
    found: list[list[str]] = []
    taken: set[str] = set()
    for parent in dict.fromkeys(module.rpartition(".")[0] for module in modules):
        for joined in _JOINED:
            members = [module for last in joined if (module := f"{parent}.{last}" if parent else last) in modules]
            if len(members) > 1 and not taken.intersection(members):
                taken.update(members)
                found.append([modules[module] for module in members])
    return found
