# SPDX-License-Identifier: Apache-2.0
"""The types of a network's parameters, computations and outputs: the policies of DeepMind's jmp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpucast.arrays import tree as trees
from gpucast.arrays.tree import dtype_of, floating
from gpucast.casting.calls import Names
from gpucast.casting.cast_many import cast_arrays
from gpucast.core.dtypes import DType, dtype

#: The short names of jmp; "half" is float16 everywhere except on a TPU. NumPy's codes ("f4") are not accepted.
_SHORT = {"bf16": "BFLOAT16", "f16": "FLOAT16", "half": "FLOAT16", "f32": "FLOAT", "full": "FLOAT", "f64": "DOUBLE"}
_KEYS = {"p": "param", "params": "param", "c": "compute", "compute": "compute", "o": "output", "output": "output"}


@dataclass(frozen=True, init=False)
class Policy:
    """The types of parameters, computations and outputs: any signed floating types, as `gpucast.dtype` takes them.

    The three casts take trees (see `gpucast.cast_many`). Floating leaves, whose types have an exponent, are cast as by
    `gpucast.cast`, on a device all of them in one launch. Leaves that have the type already, and all other arrays,
    numbers and texts, are returned as they are, without a copy.

    TypeError for an object that is no dtype, for a dtype that cannot hold parameters (integers, BOOL, STRING,
    FLOAT8E8M0), and for a leaf into which gpucast does not look: an iterator, a model, a container of another kind.
    """

    param_dtype: DType
    compute_dtype: DType
    output_dtype: DType

    def __init__(self, param_dtype: Any, compute_dtype: Any, output_dtype: Any) -> None:
        given = {"param_dtype": param_dtype, "compute_dtype": compute_dtype, "output_dtype": output_dtype}
        for name, kind in given.items():
            object.__setattr__(self, name, _float_dtype(kind, f"Policy: {name}="))

    def cast_to_param(self, tree: Any) -> Any:
        """The tree with its floating leaves in `param_dtype`."""
        return _cast(tree, self.param_dtype, "cast_to_param")

    def cast_to_compute(self, tree: Any) -> Any:
        """The tree with its floating leaves in `compute_dtype`."""
        return _cast(tree, self.compute_dtype, "cast_to_compute")

    def cast_to_output(self, tree: Any) -> Any:
        """The tree with its floating leaves in `output_dtype`."""
        return _cast(tree, self.output_dtype, "cast_to_output")

    def with_output_dtype(self, output_dtype: Any) -> Policy:
        """The same policy with another type for outputs."""
        return replace(self, output_dtype=output_dtype)

    def __str__(self) -> str:
        """jmp's short form, which `get_policy` reads: "p=f32,c=bf16,o=f32"."""
        names = (_name(kind) for kind in (self.param_dtype, self.compute_dtype, self.output_dtype))
        return "p={},c={},o={}".format(*names)


def get_policy(text: str) -> Policy:
    """The policy that a text in jmp's form names.

    Texts are such as "params=float32,compute=bfloat16,output=float32", the same with keys p, c and o, or one type for
    all three. Defaults: parameters are FLOAT, computations have the type of the parameters, outputs the type of the
    computations. Types: jmp's short names f16 or half, bf16, f32 or full, f64, and every name that `gpucast.dtype`
    takes.

    TypeError for an object that is no text, and for text that names no type, ValueError for an unknown or repeated key.
    """
    if not isinstance(text, str):
        raise TypeError(f"get_policy: {text!r} is no text; expected one such as 'p=f32,c=bf16,o=f32'")
    if "=" not in text:
        kind = _named(text)
        return Policy(kind, kind, kind)
    rows: dict[str, DType] = {}
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        role = _KEYS.get(key)
        if role is None:
            raise ValueError(f"get_policy: {part!r} in {text!r} has no known key; expected p=, c= or o= with a type")
        if role in rows:
            raise ValueError(f"get_policy: {text!r} gives {role} twice")
        rows[role] = _named(value)
    param = rows.get("param", dtype("FLOAT"))
    compute = rows.get("compute", param)
    return Policy(param, compute, rows.get("output", compute))


def _named(name: str) -> DType:
    name = name.strip()
    return _float_dtype(_SHORT.get(name, name), "get_policy: ")


def _float_dtype(given: Any, caller: str) -> DType:
    kind = dtype(given, caller=caller)
    if kind.family != "float":
        why = "has neither sign nor zero" if kind.is_float else "is no floating type"
        raise TypeError(f"{caller}{kind.name!r} {why}; expected one such as FLOAT, BFLOAT16, FLOAT16 or FLOAT8E4M3FN")
    return kind


def _name(kind: DType) -> str:
    return next((short for short, name in _SHORT.items() if name == kind.name), kind.numpy_name)


def _cast(tree: Any, kind: DType, caller: str) -> Any:
    leaves, structure = trees.flatten(tree, f"{caller}: tree")
    found = floating(leaves, lambda: trees.paths(structure), f"{caller}: tree")
    indices = [i for i in found if dtype_of(leaves[i]) is not kind]
    if indices:
        names = Names("tree", lambda: trees.paths(structure, indices))
        for i, result in zip(indices, cast_arrays([leaves[i] for i in indices], kind, names, caller), strict=True):
            leaves[i] = result
    return trees.unflatten(structure, leaves)
