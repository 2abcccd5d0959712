# SPDX-License-Identifier: Apache-2.0
"""Quantizes tensors: divides them by scales, rounds them to few bits, and stores the scales with the codes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from gpucast.casting.loss_counts import CastReport
from gpucast.convert.losses import counts
from gpucast.convert.losses.statistics import Errors, Statistics, runs_of_piece
from gpucast.convert.scales import scale_styles
from gpucast.convert.scales.dequantized import Dequantized
from gpucast.convert.scales.per_file import FileScales, read_as_numbers
from gpucast.convert.scales.request import Request
from gpucast.convert.scales.scale_styles import STYLES, Unsuitable
from gpucast.convert.scales.stored import Stored
from gpucast.convert.streaming.pieces import (
    Quantize,
    Quantizer,
    by_reference,
    dequantized,
    extremes,
    joined,
    matrices,
    placed,
    quantizable,
    quantizing,
    sliced,
)
from gpucast.convert.streaming.prefetch import Prefetcher
from gpucast.convert.streaming.same_codes import are_same, same_bytes
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import STOCHASTIC
from gpucast.files import FileError, TensorFile
from gpucast.files.tensor import NDArray, Spec, Tensor
from gpucast.quantization import RECIPES, recipes
from gpucast.quantization.formats import FORMATS, SOURCES, Format, Parts, ScaleRule

#: Weights that loaders join into one layer, for which NVFP4 has a single global scale.
#:
#: vLLM joins these projections and multiplies all of a joined layer by one global scale, the largest of them: schemes/
#: compressed_tensors_w4a4_nvfp4.py and compressed_tensors_w4a16_nvfp4.py (`weight_global_scale.max()`), modelopt.py.
#: The groups are those of llm-compressor, entrypoints/model_free/microscale.py DEFAULT_FUSED_MAPPINGS, and of vLLM's
#: models/deepseek_v2.py (fused_qkv_a_proj), deepseek_v4 (wq_a, wkv) and qwen3_5.py (in_proj_qkvz, in_proj_ba).
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
_FLOAT, _BFLOAT16 = dtype("FLOAT"), dtype("BFLOAT16")
#: The values of --scale.
SCALES = ("none", "per-tensor", "per-channel", "block", "mx", "nvfp4")
_BLOCKS = {"per-tensor": "tensor", "per-channel": "axis", "block": "128"}
_MX = {
    "FLOAT8E4M3FN": "mxfp8e4m3",
    "FLOAT8E5M2": "mxfp8e5m2",
    "FLOAT6E2M3": "mxfp6e2m3",
    "FLOAT6E3M2": "mxfp6e3m2",
    "FLOAT4E2M1": "mxfp4",
}
#: What two formats have in common that are stored alike.
_FORM = ("element", "scale", "block", "zero_points", "global_scale")
#: Elements of a piece that are compared when a sample is verified.
_SAMPLE = 1 << 10
#: Writes one tensor from flat pieces in order; returns the bytes written.
Write = Callable[[Spec, Iterable[NDArray]], int]
#: Called for each piece with the number of its elements, and what they lose when they are read back.
Observe = Callable[[int, Statistics], None]


@dataclass
class FusedGroup:
    """Weights that share a global scale; they may lie in several files."""

    #: The file of each weight, by name.
    paths: Mapping[str, str]
    #: Which tensors of those files are codes and scales.
    scales: Mapping[str, FileScales]
    _extremes: NDArray | None = field(default=None, repr=False)

    def extremes(self) -> NDArray:
        """As `gpucast.convert.streaming.pieces.extremes`, of all the weights. FileError if one is gone."""
        if self._extremes is None:
            found = [one for path in dict.fromkeys(self.paths.values()) for one in self._of(path)]
            self._extremes = np.array([min(low for low, _ in found), max(high for _, high in found)])
        return self._extremes

    def _of(self, path: str) -> Iterator[NDArray]:
        names = [name for name, place in self.paths.items() if place == path]
        with TensorFile(path) as file:
            held = {tensor.name: tensor for tensor in read_as_numbers(file.tensors, self.scales[path], file)}
            for name in names:
                if name not in held:
                    raise FileError(f"{path}: tensor {name!r} is gone since the file was first looked at")
                yield extremes(held[name], nan=False)


def groups(names: Iterable[str]) -> list[list[str]]:
    """The names of weights that loaders join, two or more in each list; a name is in one list at most."""
    modules = {name.removesuffix(".weight"): name for name in names if name.endswith(".weight")}
    found: list[list[str]] = []
    taken: set[str] = set()
    for parent in dict.fromkeys(module.rpartition(".")[0] for module in modules):
        for names_of_one in _JOINED:
            members = [module for last in names_of_one if (module := f"{parent}.{last}" if parent else last) in modules]
            if len(members) > 1 and not taken.intersection(members):
                taken.update(members)
                found.append([modules[module] for module in members])
    return found


def formats(dtype: DType) -> dict[str, Format]:
    """The format that each value of --scale stands for, given the type of the codes."""
    name = dtype.name.lower()
    if dtype.family == "int" and dtype.bits <= 8:
        base = name if dtype.signed else f"{name}_zp"
        return {scale: FORMATS[f"{base}_{block}"] for scale, block in _BLOCKS.items()}
    by_scale = {}
    if name in ("float8e4m3fn", "float8e5m2"):
        by_scale = {scale: FORMATS[f"{name}_{block}"] for scale, block in {**_BLOCKS, "block": "128x128"}.items()}
    if dtype.name in _MX:
        by_scale["mx"] = FORMATS[_MX[dtype.name]]
    if dtype.name == "FLOAT4E2M1":
        by_scale["nvfp4"] = FORMATS["nvfp4"]
    return by_scale


def format_of(scale: str, dtype: DType) -> Format | None:
    """The format that a value of --scale, or a recipe, stands for, given the type of the codes; None if it is not for
    this type."""
    recipe = RECIPES.get(scale)
    if recipe is None:
        return formats(dtype).get(scale)
    return recipe.format if recipe.format.element is dtype else None


def default_rule(style: str, format: Format) -> ScaleRule:
    """How the tool whose style it is finds the scales of a format."""
    if format.name in RECIPES:
        return format.rule
    if style != "compressed-tensors" or format.zero_points:
        return format.rule
    if format.scale.family == "e8m0":
        return "up" if format.element.bits == 8 else "even"
    return "full_range" if format.element.family == "int" else format.rule


def library_recipe(style: str, format: Format, source: DType) -> str | None:
    """The recipe by which the library whose style it is finds the codes and scales of a format; None if there is none
    for tensors of the type `source`."""
    library = STYLES[style].writer
    for name, recipe in RECIPES.items():
        if recipe.library != library or source.name not in recipe.sources:
            continue
        own = scale_styles.form(style, recipe.format)
        if all(getattr(own, part) == getattr(format, part) for part in _FORM):
            return name
    return None


def _is_free(request: Request) -> bool:
    """Whether nobody said how the scales are found."""
    return request.scale_rule is None and not request.repack and request.scale not in RECIPES


def is_of_own_rule(request: Request, kind: str, to: DType) -> bool:
    """Whether a tensor of the type `kind` gets scales by gpucast's rule although the style is another library's, since
    no recipe has those of that library."""
    format = None if request.scale is None else format_of(request.scale, to)
    if format is None or not _is_free(request) or STYLES[request.style].writer is None:
        return False
    return not any(library_recipe(request.style, format, source) for source in SOURCES if source.name == kind)


def scaled_storage(tensor: Tensor, dtype: DType, request: Request, path: str) -> Stored | str | None:
    """How a tensor of the file `path` is stored when it is quantized to `dtype`.

    None if it gets a plain cast without scales; a text if it is kept, which says why. Without a rule for the scales the
    style's own tool gives all codes and scales, if it has a recipe for them. FileError if options do not fit.
    """
    scale, style, rule, attributes = request.scale, request.style, request.scale_rule, request.attributes
    is_narrow = dtype.family != "bool" and 0 < dtype.bits <= 8
    if scale == "none" or tensor.dtype in (None, dtype) or not (is_narrow and tensor.dtype.is_float):
        return None
    caller = f"{path}: tensor {tensor.name!r}"
    known = formats(dtype)
    accepted = f"{', '.join(known)} or none" if known else "none"
    if scale is None:
        raise FileError(
            f"{caller} from {tensor.dtype.name} to {dtype.name}: numbers of so few bits usually need scales; "
            f"give --scale {accepted} (none: a plain cast, by --overflow and --rounding)"
        )
    format = format_of(scale, dtype)
    if format is None and scale in RECIPES:
        element = RECIPES[scale].format.element
        raise FileError(f"{caller}: --style {scale} has codes of {element}, not of {dtype}; give --to {element}")
    if format is None:
        raise FileError(f"{caller}: --scale {scale} is not for {dtype.name}; expected {accepted}")
    if _is_free(request) and (own := library_recipe(style, format, tensor.dtype)) is not None:
        scale, format = own, RECIPES[own].format
    rule = rule or default_rule(style, format)
    if rule != format.rule:
        try:
            format = replace(format, name=f"{format}_{rule}", rule=rule)
        except ValueError as error:
            raise FileError(f"{caller}: --scale-rule {rule}: {error}") from None
    is_of_weights = format.steps is None or format.steps.rounds_scales
    if style == "compressed-tensors" and tensor.dtype is _BFLOAT16 and format.has_float_scales and is_of_weights:
        # As that style's own tool does: scales of the type of the weights.
        format = replace(format, name=f"{format}_bfloat16", scale=_BFLOAT16)
    if scale in RECIPES:
        try:
            recipes.check_source(scale, format, tensor.dtype if tensor.dtype in SOURCES else _FLOAT, caller)
        except TypeError as error:
            more = "; it has scales: convert it to BFLOAT16 first" if isinstance(tensor, Dequantized) else ""
            raise FileError(f"{error}{more}") from None
        format = scale_styles.form(style, format)
    if not STYLES[style].takes(format):
        held = f"it holds {STYLES[style].held}"
        raise FileError(f"{caller}: --style {style} cannot hold {dtype.name} with --scale {scale}: {held}")
    for option, default in (("saturate", True), ("round_mode", "up"), ("rounding", None), ("overflow", None)):
        is_stochastic = (
            option == "rounding" and attributes.get(option) == STOCHASTIC and format.element.family == "float"
        )
        if attributes.get(option, default) != default and not is_stochastic:
            raise FileError(f"{caller}: --{option.replace('_', '-')} has no meaning with --scale {scale}; leave it out")
    if len(tensor.shape) < 2:
        return "fewer than 2 dimensions"
    if not tensor.size:
        return "no elements"
    try:
        asked_for = request.choice.asked_for(tensor)
        made = scale_styles.stored(style, tensor.name, tensor.shape, format, tensor.dtype, asked_for)
        names_recipe = scale in RECIPES and STYLES[style].is_configured
        return replace(made, metadata=((scale_styles.RECIPE, scale),)) if names_recipe else made
    except Unsuitable as reason:
        return str(reason)


@dataclass(frozen=True)
class Scaled:
    """A tensor that is quantized to codes and scales."""

    tensor: Tensor
    stored: Stored
    request: Request
    #: The weights that share its global scale, if there are more.
    group: FusedGroup | None = None

    @property
    def specs(self) -> Sequence[Spec]:
        """The tensors that replace it in the file, codes first."""
        return list(self.stored.specs.values())

    def write(self, write: Write, observe: Observe, prefetcher: Prefetcher) -> None:
        """Write all of `specs` in their order, and call the observer once for each piece.

        Memory use grows with the number of scales, not with the number of elements.
        """
        stored, format, size = self.stored, self.stored.format, self.tensor.size
        quantize = self._quantizer(quantizing(prefetcher.engine))
        scales: list[Parts] = []

        def work(piece: tuple[int, NDArray]) -> tuple[NDArray, Statistics, Parts]:
            start, x = piece
            parts = quantize(x, start)
            report, chosen = counts.of_piece(x, parts, format), runs_of_piece(size, start, x.size)
            # Without any, no result is NaN or infinite.
            is_special = report.nan or report.infinite or any(counts.special(x, dtype(x.dtype)))
            values, restored = x.reshape(-1), np.empty(0)
            if chosen or is_special:
                restored = dequantized(parts, format).reshape(-1)
            statistics = self._statistics(report, restored if is_special else restored[:0])
            for run in chosen:
                largest = counts.largest_error(values[run], restored[run])
                statistics.examine(values[run], restored[run], largest)
            return stored.pack(parts.data), statistics, replace(parts, data=None)

        def pieces() -> Iterator[NDArray]:
            every = placed(matrices(self.tensor, stored.cut))
            for packed, statistics, parts in prefetcher.in_order(work, every):
                scales.append(parts)
                observe(statistics.report.elements, statistics)
                yield packed

        write(stored.specs["data"], stored.in_groups(pieces()))
        self._write_scales(write, joined(format, stored.shape, scales))

    def _statistics(self, report: CastReport, restored: NDArray) -> Statistics:
        """What a piece loses, without the errors of numbers; `restored`: its results, if any may be NaN or infinite."""
        return Statistics(report, Errors.of(self.request.detail), *counts.special(restored, dtype("DOUBLE")))

    def _write_scales(self, write: Write, parts: Parts) -> None:
        """Write all of `specs` behind the codes."""
        arrays = self.stored.stored_parts(parts)
        for part, spec in self.stored.specs.items():
            if part != "data":
                write(spec, [arrays[part]])

    def _quantizer(self, quantize: Quantize) -> Quantizer:
        among = None if self.group is None else self.group.extremes
        return Quantizer(self.tensor, self.stored.format, quantize, self.request.random(self.tensor.name), among)

    def verify(
        self,
        written: Mapping[str, Tensor],
        everything: bool,
        caller: str,
        prefetcher: Prefetcher,
        advance: Callable[[int], object],
    ) -> int:
        """Compare the written tensors (`written`, by name) with the reference; the number of compared elements.

        Unless `everything`, only a sample of each piece is compared. `advance` takes the elements that are done.
        FileError if anything differs.
        """
        stored, format = self.stored, self.stored.format
        tensors = {part: written[spec.name] for part, spec in stored.specs.items()}
        for part, spec in stored.specs.items():
            if tensors[part].dtype is not spec.dtype or tensors[part].shape != spec.shape:
                actual = f"{tensors[part].kind} {tensors[part].shape}"
                raise FileError(f"{caller}: tensor {spec.name!r} is {actual}; expected {spec.dtype} {spec.shape}")
        quantize = self._quantizer(by_reference)
        # All but the codes is read now: the tensors of a file share its stream, in which the codes then go on.
        loaded = stored.loaded_parts(tensors)
        global_scale = tensors["global_scale"].read().reshape(-1) if "global_scale" in tensors else None
        stored_pieces = zip(stored.codes(tensors["data"]), sliced(format, stored.cut, loaded), strict=True)
        samples = _samples(stored, everything, whole_rows=self.request.seed is not None)

        def given_global(wanted: Parts) -> bool:
            if global_scale is None:
                return True
            # Compared as it is stored: a reciprocal is rounded.
            known = stored.stored_parts(Parts(None, None, None, wanted.global_scale))
            return same_bytes(known["global_scale"], global_scale)

        def work(given: tuple[tuple[int, _Sample, NDArray] | None, tuple[NDArray, Parts]]) -> tuple[int, int]:
            piece, (codes, parts) = given
            if piece is None:
                return 0, codes.size
            start, chosen, x = piece
            if everything and are_same(quantize, x, codes, parts) and given_global(quantize(x[:1, :16], start)):
                return codes.size, codes.size
            wanted = quantize(x, start)
            same = same_bytes(wanted.data, codes[chosen.rows, chosen.columns]) and all(
                same_bytes(array.reshape(-1), getattr(parts, part).reshape(-1)[chosen.block :][: array.size])
                for part, array in (("scales", wanted.scales), ("zero_points", wanted.zero_points))
                if array is not None
            )
            same &= given_global(wanted)
            if not same:
                raise FileError(f"{caller}: tensor {self.tensor.name!r} differs from the reference")
            return wanted.data.size, codes.size

        compared = 0
        pieces = zip(_chosen(self.tensor, stored, samples), stored_pieces, strict=True)
        with closing(prefetcher.in_order(work, pieces)) as done:
            for some, size in done:
                compared += some
                advance(size)
        return compared


@dataclass(frozen=True)
class _Sample:
    """The part of a piece that is compared: rows, columns, and the block of their first scale."""

    rows: slice
    columns: slice
    block: int = 0


def _samples(stored: Stored, everything: bool, whole_rows: bool) -> Iterator[_Sample | None]:
    """For each piece the part that is compared, in whole blocks: about `_SAMPLE` elements, or all; None for nothing.

    A block that is much larger is compared of so many fewer pieces, the first among them.
    """
    format, block = stored.format, stored.format.block
    chance = np.random.default_rng(math.prod(stored.shape))
    wait = 0
    for rows, columns in stored.cut.shapes():
        if everything:
            yield _Sample(slice(rows), slice(columns))
            continue
        if format.min_ndim == 1 or isinstance(block, str):
            yield _Sample(slice(min(rows, max(1, _SAMPLE // columns))), slice(columns))
            continue
        height, width = format.lengths((rows, columns), 1)
        # Random bits go by whole rows.
        width = columns if whole_rows else width
        tiles = max(1, _SAMPLE // (height * width))
        if wait:
            wait -= 1
            yield None
            continue
        wait = max(0, height * width // _SAMPLE - 1)
        first = int(chance.integers(-(-columns // width)))
        yield _Sample(slice(height), slice(first * width, (first + tiles) * width), first)


def _chosen(
    tensor: Tensor, stored: Stored, samples: Iterator[_Sample | None]
) -> Iterator[tuple[int, _Sample, NDArray] | None]:
    """For each piece the index of its first element, the part that is compared, and the same part of the source."""
    cut, start = stored.cut, 0
    placed = tensor.part(0, 1) is not None and not (tensor.dtype is not None and tensor.dtype.packed)
    pieces = None if placed else matrices(tensor, cut)
    for (rows, columns), sample in zip(cut.shapes(), samples, strict=True):
        x = None if pieces is None else next(pieces)
        if sample is None:
            yield None
        else:
            if x is None:
                part = tensor.part(start, len(range(rows)[sample.rows]) * columns)
                assert part is not None
                x = quantizable(part.read()).reshape(-1, columns)
            yield start, sample, x[sample.rows, sample.columns]
        start += rows * columns
