# SPDX-License-Identifier: Apache-2.0
"""Recipes: the formats of other libraries, with the same codes and scales as theirs.

A recipe is a row of data: a `Format` and, where that library's arithmetic is not exact, its `Steps`. It stands here
only because a comparison with the library, or with its formula, found no code and no scale that differs
(`tests/quantization/test_recipes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, Literal

from gpucast.core.dtypes import DType, dtype
from gpucast.core.errors import nearest
from gpucast.quantization import formats
from gpucast.quantization.formats import ROW, SOURCES, Format
from gpucast.quantization.steps import Steps

__all__ = ["RECIPES", "Recipe", "find"]


@dataclass(frozen=True)
class Recipe:
    """A format with the codes and scales of another library."""

    format: Format
    #: The library, and its version or commit.
    library: str
    version: str
    #: The types of arrays for which it was held.
    sources: tuple[str, ...]
    #: The largest magnitude up to which it was held. Beyond it that library has scales that are infinite or NaN.
    limit: float
    #: What was compared: the "package" itself on a CPU; the "reference" of its kernels in PyTorch, on a CPU; or the
    #: "formula" in the source of its kernels, which no GPU has confirmed.
    held: Literal["package", "reference", "formula"]

    @property
    def name(self) -> str:
        return self.format.name


_ALL = ("FLOAT", "FLOAT16", "BFLOAT16")
_NO_HALF, _HALF = ("FLOAT", "BFLOAT16"), ("FLOAT16", "BFLOAT16")
_VERSIONS = {
    "DeepGEMM": "54e2261",
    "TileKernels": "36d9e45",
    "TransformerEngine": "d0067d0",
    "torchao": "36027d8",
    "compressed-tensors": "0.20.0",
    "comfy-kitchen": "0.2.40",
    "ModelOpt": "a2fbac7",
    "vLLM": "0d6c41a",
    "FlashInfer": "fb28d72",
    "microxcaling": "7bc4195",
}
#: Their names as users may write them.
_LIBRARIES = {library.lower() for library in _VERSIONS}

#: What some rows leave out of the types that arrays can have.
_SOURCES = {"compressed-tensors-mxfp4": _NO_HALF, "compressed-tensors-mxfp8": _NO_HALF}
# A tie of so few bits times 1 + 2^-23 is just above it. Of FLOATs the number below a tie would be, too.
_SOURCES |= {f"microxcaling-mxfp{name}": _HALF for name in ("8", "8-e5m2", "6-e2m3", "6-e3m2", "4")}

#: Those whose largest magnitude overflows when it is rounded.
_LIMITS = dict.fromkeys(
    (
        *("torchao-mxfp8-even", "torchao-mxfp4-even", "torchao-0.18-mxfp8-even", "torchao-0.18-mxfp4-even"),
        *("compressed-tensors-mxfp4", "compressed-tensors-mxfp8"),
    ),
    2.0**126,
)

#: Columns: name; library, with a version if it is another than above; what it was held against; element, scale, block
#: ("row": one for each row) and rule, or the name of a format; then, as `Steps` has them: scale; code; u; global scale;
#: zero. 1.1754944e-38 is the smallest normal FLOAT, 1.0000001 the number after 1.
_TABLE = """
deepgemm | DeepGEMM | reference | FLOAT8E4M3FN FLOAT 1x128 amax | max(a,1e-4)/448 | x*(1/s)
deepgemm-128x128 | DeepGEMM | reference | FLOAT8E4M3FN FLOAT 128x128 amax | max(a,1e-4)/448 | x*(1/s)
deepgemm-ue8m0 | DeepGEMM | reference | FLOAT8E4M3FN FLOAT8E8M0 1x128 up | max(a,1e-4)/448 | x*(1/s)
deepgemm-ue8m0-128x128 | DeepGEMM | reference | FLOAT8E4M3FN FLOAT8E8M0 128x128 up | max(a,1e-4)/448 | x*(1/s)
tilekernels | TileKernels | reference | FLOAT8E4M3FN FLOAT 1x128 amax | max(a,1e-4)/448 | x*(448/max(a,1e-4))
tilekernels-128x128 | TileKernels | reference | FLOAT8E4M3FN FLOAT 128x128 amax | max(a,1e-4)/448 \
    | x*(448/max(a,1e-4))
deepgemm-cuda | DeepGEMM | formula | FLOAT8E4M3FN FLOAT 1x128 amax | max(a,1e-4)*(1/448) | x*(1/s)
deepgemm-cuda-128x128 | DeepGEMM | formula | FLOAT8E4M3FN FLOAT 128x128 amax | max(a,1e-4)*(1/448) | x*(1/s)

torchao-mxfp8-floor | torchao | package | mxfp8e4m3
torchao-mxfp8-even | torchao | package | mxfp8e4m3_even
torchao-mxfp8-rceil | torchao | package | FLOAT8E4M3FN FLOAT8E8M0 32 up | a*(1/448) | x*(1/s)
torchao-mxfp4-floor | torchao | package | mxfp4
torchao-mxfp4-even | torchao | package | mxfp4_even
torchao-mxfp4-rceil | torchao | package | FLOAT4E2M1 FLOAT8E8M0 32 up | a*(1/6) | x*(1/s)
torchao-0.18-mxfp8-floor | torchao 0.18.0 | package | FLOAT8E4M3FN FLOAT8E8M0 32 up | power(a)*(1/256) \
    | x*(1/max(s,1.1754944e-38))
torchao-0.18-mxfp8-even | torchao 0.18.0 | package | FLOAT8E4M3FN FLOAT8E8M0 32 up | power(a+power(a)*0.0625)*(1/256) \
    | x*(1/max(s,1.1754944e-38))
torchao-0.18-mxfp4-floor | torchao 0.18.0 | package | FLOAT4E2M1 FLOAT8E8M0 32 up | power(a)*(1/4) \
    | x*(1/max(s,1.1754944e-38))
torchao-0.18-mxfp4-even | torchao 0.18.0 | package | FLOAT4E2M1 FLOAT8E8M0 32 up | power(a+power(a)*0.25)*(1/4) \
    | x*(1/max(s,1.1754944e-38))
torchao-float8-row | torchao | package | FLOAT8E4M3FN FLOAT row amax | T(a/448) | x/s
torchao-float8-tensor | torchao | package | FLOAT8E4M3FN FLOAT tensor amax | T(a/448) | x/s
torchao-float8-cuda-row | torchao | formula | FLOAT8E4M3FN FLOAT row amax | T(a*(1/448)) | x/s
torchao-float8-cuda-tensor | torchao | formula | FLOAT8E4M3FN FLOAT tensor amax | T(a*(1/448)) | x/s
torchao-float8-training-row | torchao | package | FLOAT8E4M3FN FLOAT row amax | 1/min(448/a,4.48e14) \
    | x*min(448/a,4.48e14)
torchao-float8-training-tensor | torchao | package | FLOAT8E4M3FN FLOAT tensor amax | 1/min(448/a,4.48e14) \
    | x*min(448/a,4.48e14)
torchao-nvfp4 | torchao | package | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | max(a/6/u,0.015625) | x*(1/u/s) | A/2688
torchao-nvfp4-cuda | torchao | formula | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | max(a*(1/6)/u,0.015625) | x*(1/u/s) \
    | A*(1/2688)
torchao-nvfp4-one-level | torchao | package | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | max(a/6,0.015625) | x*(1/s)
torchao-int4-32 | torchao | package | INT4 FLOAT 32 full_range | max(T(a/7.5),tiny) | T(x*T(1/s))
torchao-int4-128 | torchao | package | INT4 FLOAT 128 full_range | max(T(a/7.5),tiny) | T(x*T(1/s))
torchao-int8-row | torchao | package | INT8 FLOAT row full_range | max(T(a/127.5),tiny) | T(x*T(1/s))

compressed-tensors-fp8 | compressed-tensors | package | FLOAT8E4M3FN FLOAT tensor amax | T(a/448) | T(x/s) | | | eps
compressed-tensors-fp8-row | compressed-tensors | package | FLOAT8E4M3FN FLOAT row amax | T(a/448) | T(x/s) | | \
    | eps
compressed-tensors-fp8-128x128 | compressed-tensors | package | FLOAT8E4M3FN FLOAT 128x128 amax | T(a/448) | T(x/s) \
    | | | eps
compressed-tensors-mxfp4 | compressed-tensors | package | mxfp4_even
compressed-tensors-mxfp8 | compressed-tensors | package | FLOAT8E4M3FN FLOAT8E8M0 32 up \
    | power(a+power(a)*0.25)*(1/256) | x*(1/s)
compressed-tensors-nvfp4 | compressed-tensors | package | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | u*T(a/6) | x/(s/u) \
    | pick(1/T(T(1/max(A,tiny))*2688),T(T(1/max(A,tiny))*2688),1) | 1/u | 0.125
compressed-tensors-int4-128 | compressed-tensors | package | INT4 FLOAT 128 full_range | T(a/7.5) | T(x/s) | | | eps
compressed-tensors-int4-32 | compressed-tensors | package | INT4 FLOAT 32 full_range | T(a/7.5) | T(x/s) | | | eps
compressed-tensors-int4-row | compressed-tensors 0.20.1 | package | INT4 FLOAT row full_range | T(a/7.5) | T(x/s) \
    | | | eps
compressed-tensors-int8-128 | compressed-tensors 0.20.1 | package | INT8 FLOAT 128 full_range | T(a/127.5) | T(x/s) \
    | | | eps
compressed-tensors-int8-row | compressed-tensors | package | INT8 FLOAT row full_range | T(a/127.5) | T(x/s) | | \
    | eps

comfy-kitchen-fp8 | comfy-kitchen | package | FLOAT8E4M3FN FLOAT tensor amax | T(a/448) | T(x*T(1/s))
comfy-kitchen-fp8-e5m2 | comfy-kitchen | package | FLOAT8E5M2 FLOAT tensor amax | T(a/57344) | T(x*T(1/s))
comfy-kitchen-nvfp4 | comfy-kitchen | package | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | a/6/pick(u,u,1) \
    | x/pick(u*s,u*s,largest) | T(A/2688)

te-float8-current | TransformerEngine | reference | FLOAT8E4M3FN FLOAT tensor amax | pick(a,1/min(448/a,largest),1) \
    | x*pick(a,min(448/a,largest),1)
te-float8-current-e5m2 | TransformerEngine | reference | FLOAT8E5M2 FLOAT tensor amax \
    | pick(a,1/min(57344/a,largest),1) | x*pick(a,min(57344/a,largest),1)
te-float8-block | TransformerEngine | reference | FLOAT8E4M3FN FLOAT 1x128 amax \
    | pick(a,1/power(min(448/a,largest)),1) | x*(1/s)
te-float8-block-128x128 | TransformerEngine | reference | FLOAT8E4M3FN FLOAT 128x128 amax \
    | pick(a,1/power(min(448/a,largest)),1) | x*(1/s)
te-mxfp8 | TransformerEngine | formula | FLOAT8E4M3FN FLOAT8E8M0 32 up | a*(1/448) | x*(1/s)
te-mxfp8-e5m2 | TransformerEngine | formula | FLOAT8E5M2 FLOAT8E8M0 32 up | a*(1/57344) | x*(1/s)
te-nvfp4 | TransformerEngine | reference | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | min(a*(u*(1/6)),largest) \
    | x*min(1/(s*(1/u)),largest) | pick(A,min(2688/A,largest),1) | 1/u
te-nvfp4-16x16 | TransformerEngine | reference | FLOAT4E2M1 FLOAT8E4M3FN 16x16 amax | min(a*(u*(1/6)),largest) \
    | x*min(1/(s*(1/u)),largest) | pick(A,min(2688/A,largest),1) | 1/u

modelopt-nvfp4 | ModelOpt | reference | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | pick(a/(6*u),max(a/(6*u),0.001953125),1) \
    | x/(s*u) | A/2688
modelopt-nvfp4-cuda | ModelOpt | formula | FLOAT4E2M1 FLOAT8E4M3FN 16 amax \
    | pick(a/(6*u),max(a/(6*u),0.001953125),1) | x/(s*u) | A*(1/2688)
modelopt-fp8-cuda | ModelOpt | formula | FLOAT8E4M3FN FLOAT tensor amax | T(a*(1/448)) | T(x/s)
modelopt-fp8 | ModelOpt | reference | FLOAT8E4M3FN FLOAT tensor amax | T(a/448) | T(x/s)

vllm-fp8-token | vLLM | formula | FLOAT8E4M3FN FLOAT row amax | max(a/448,1/(448*512)) | x/s
vllm-fp8-tensor | vLLM | formula | FLOAT8E4M3FN FLOAT tensor amax | a/448 | x*(1/s)
vllm-fp8-group | vLLM | formula | FLOAT8E4M3FN FLOAT 1x128 amax | max(a,1e-10)/448 | x/s
vllm-nvfp4 | vLLM | formula | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | u*(a*(1/6)) | x*pick(s*(1/u),1/(s*(1/u)),0) \
    | 1/A*2688 | 1/u

flashinfer-nvfp4-exact | FlashInfer | formula | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | pick(a,a*(u*(1/6)),0) \
    | x*min(1/(s*(1/u)),largest) | 1/A*2688 | 1/u
flashinfer-nvfp4 | FlashInfer | reference | FLOAT4E2M1 FLOAT8E4M3FN 16 amax | u*(a*(1/6)) \
    | x*pick(s*(1/u),1/(s*(1/u)),0) | 1/A*2688 | 1/u

microxcaling-mxfp8 | microxcaling | reference | FLOAT8E4M3FN FLOAT8E8M0 32 up | power(a)*(1/256) | x*(1.0000001/s)
microxcaling-mxfp8-e5m2 | microxcaling | reference | FLOAT8E5M2 FLOAT8E8M0 32 up | power(a)*(1/32768) | x*(1.0000001/s)
microxcaling-mxfp6-e2m3 | microxcaling | reference | FLOAT6E2M3 FLOAT8E8M0 32 up | power(a)*(1/4) | x*(1.0000001/s)
microxcaling-mxfp6-e3m2 | microxcaling | reference | FLOAT6E3M2 FLOAT8E8M0 32 up | power(a)*(1/16) | x*(1.0000001/s)
microxcaling-mxfp4 | microxcaling | reference | FLOAT4E2M1 FLOAT8E8M0 32 up | power(a)*(1/4) | x*(1.0000001/s)
microxcaling-mxfp8-round-even | microxcaling | reference | mxfp8e4m3
microxcaling-mxfp8-e5m2-round-even | microxcaling | reference | mxfp8e5m2
microxcaling-mxfp6-e2m3-round-even | microxcaling | reference | mxfp6e2m3
microxcaling-mxfp6-e3m2-round-even | microxcaling | reference | mxfp6e3m2
microxcaling-mxfp4-round-even | microxcaling | reference | mxfp4
"""


def _rows(text: str) -> dict[str, Recipe]:
    recipes = {}
    for line in text.replace("\\\n", "").strip().splitlines():
        if not line:
            continue
        name, library, held, columns, *formulas = (cell.strip() for cell in line.split("|"))
        if not formulas:
            format = replace(formats.find(columns, "recipes"), name=name)
        else:
            element, scale, block, rule = columns.split()
            lengths: Any = {"row": (ROW,), "tensor": "tensor"}.get(block) or tuple(map(int, block.split("x")))
            scale_formula, code, u, global_scale, zero = [*formulas, *[""] * (5 - len(formulas))]
            steps = Steps(scale_formula, code, u, global_scale or "u", zero)
            types = dtype(element), dtype(scale)
            format = Format(name, *types, lengths, rule, False, bool(u), steps)  # type: ignore[arg-type]
        sources, limit = _SOURCES.get(name, _ALL), _LIMITS.get(name, inf)
        library, _, version = library.partition(" ")
        version = version or _VERSIONS[library]
        recipes[name] = Recipe(format, library, version, sources, limit, held)  # type: ignore[arg-type]
    return recipes


class _Recipes(Mapping[str, Recipe]):
    """Recipes by their names, read when one is first looked for."""

    @cached_property
    def _rows(self) -> dict[str, Recipe]:
        return _rows(_TABLE)

    def __getitem__(self, name: str) -> Recipe:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


RECIPES: Mapping[str, Recipe] = _Recipes()


def find(asked: Any, caller: str) -> Format:
    """As `formats.find`, also for recipes. ValueError with the nearest names for an unknown one."""
    if not isinstance(asked, str) or asked in formats.FORMATS:
        return formats.find(asked, caller)
    name = asked.lower()
    if name.replace("_", "-") in RECIPES or "-" in name or name in _LIBRARIES:
        return find_recipe(asked, f"{caller}: format=").format
    return formats.find(asked, caller)


def find_recipe(asked: str, caller: str) -> Recipe:
    """The recipe of a name. ValueError with the nearest names for an unknown one; `caller` stands before the name."""
    name = asked.lower()
    for known in (name, name.replace("_", "-")):
        if known in RECIPES:
            return RECIPES[known]
    alike = [known for known in RECIPES if known.startswith(name.split("-")[0])]
    near = nearest(name, RECIPES, 3) or alike or list(RECIPES)
    raise ValueError(f"{caller}{asked!r} is no recipe; did you mean one of {', '.join(near)}?")


def takes(asked: Any, format: Format, src: DType) -> bool:
    """Whether a format that was asked for by a name takes arrays of a type."""
    return src.name in _sources(asked, format)


def check_source(asked: Any, format: Format, src: DType, caller: str) -> None:
    """TypeError for arrays of a type for which the recipe was not held, or which FLOAT does not hold."""
    if not takes(asked, format, src):
        raise TypeError(f"{caller}: {format} is for arrays of {', '.join(_sources(asked, format))}, not of {src.name}")


def _sources(asked: Any, format: Format) -> tuple[str, ...]:
    is_name = isinstance(asked, str) and asked not in formats.FORMATS
    recipe = RECIPES.get(asked.lower()) if is_name else None
    if recipe is not None:
        return recipe.sources
    return _ALL if format.steps is not None else tuple(src.name for src in SOURCES)
