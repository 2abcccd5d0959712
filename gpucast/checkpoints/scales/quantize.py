# SPDX-License-Identifier: Apache-2.0
"""Quantizes tensors: they are divided by scales and rounded to few bits, and the scales are stored with the codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucast.casting.loss_counts import CastReport
from gpucast.checkpoints.losses.scaled_counts import counted
from gpucast.checkpoints.scales import styles as scale_styles
from gpucast.checkpoints.scales.fused import FusedGroup
from gpucast.checkpoints.scales.stored import Stored
from gpucast.checkpoints.scales.styles import Unsuitable
from gpucast.checkpoints.streaming.pieces import (
    Engine,
    Quantizer,
    by_reference,
    dequantized,
    joined,
    matrices,
    on_device,
    sliced,
)
from gpucast.checkpoints.streaming.prefetch import Prefetcher
from gpucast.checkpoints.streaming.seeds import placed
from gpucast.core.dtypes import DType
from gpucast.core.formats import FORMATS, Format, Parts
from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC
from gpucast.files.tensor import Array, FileError, Spec, Tensor
from gpucast.quantization.cpu import quantize as host

#: The values of --scale.
SCALES = ("none", "per-tensor", "per-channel", "block", "mx", "nvfp4")

_BLOCKS = {"per-tensor": "tensor", "per-channel": "axis", "block": "128"}
_MX = {"FLOAT8E4M3FN": "mxfp8e4m3", "FLOAT8E5M2": "mxfp8e5m2", "FLOAT6E2M3": "mxfp6e2m3", "FLOAT6E3M2": "mxfp6e3m2"}
#: Elements of a piece that are compared when a sample is verified.
_SAMPLE = 1 << 10

#: Writes one tensor from flat pieces in order; returns the bytes written.
Write = Callable[[Spec, Iterable[Array]], int]
#: Called with each piece of the source (flat), the values that it will be read back as (scales applied; meaningless
#: unless details are asked for), and the counts of losses: for progress and statistics.
Observe = Callable[[Array, Array, CastReport], None]


def is_needed(src: DType | None, dst: DType) -> bool:
    """Whether a cast needs the option --scale: it takes floating values to 8 bits or fewer."""
    if src is None or src is dst or dst.family == "bool":
        return False
    return src.is_float and 0 < dst.bits <= 8


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
        by_scale = {"mx": FORMATS["mxfp4"], "nvfp4": FORMATS["nvfp4"]}
    return by_scale


def scaled_storage(
    tensor: Tensor,
    dtype: DType,
    scale: str | None,
    style: str,
    attributes: Mapping[str, Any],
    path: str,
    asked_for: bool = True,
) -> Stored | str | None:
    """How a tensor of the file `path` is stored when it is quantized to `dtype`.

    None if it gets a plain cast without scales; a text if it is kept, which says why. `scale` is one of `SCALES`, or
    None if the option was not given; it is ignored for tensors that need no scales. FileError if options do not fit.
    """
    if not is_needed(tensor.dtype, dtype) or scale == "none":
        return None
    caller = f"{path}: tensor {tensor.name!r}"
    assert tensor.dtype is not None
    known = formats(dtype)
    accepted = ", ".join([*known, "none"])
    if scale is None:
        raise FileError(
            f"{caller} from {tensor.dtype.name} to {dtype.name}: so few bits need a word about scales; "
            f"give --scale {accepted} (none: a plain cast)"
        )
    format = known.get(scale)
    if format is None:
        raise FileError(f"{caller}: --scale {scale} is not for {dtype.name}; expected {accepted}")
    refusal = scale_styles.refused(style, format)
    if refusal is not None:
        raise FileError(f"{caller}: --style {style} cannot hold {dtype.name} with --scale {scale}: {refusal}")
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
        return scale_styles.stored(style, tensor.name, tensor.shape, format, tensor.dtype, asked_for)
    except Unsuitable as reason:
        return str(reason)


@dataclass(frozen=True)
class Scaled:
    """A tensor that is quantized to codes and scales."""

    tensor: Tensor
    stored: Stored
    #: The random bits for stochastic rounding.
    random: Random | None = None
    #: The weights that share its global scale, if there are more.
    group: FusedGroup | None = None

    @property
    def specs(self) -> Sequence[Spec]:
        """The tensors that replace it in the file, codes first."""
        return list(self.stored.specs.values())

    def write(self, write: Write, observe: Observe, prefetcher: Prefetcher, device: str | None, detailed: bool) -> None:
        """Write all of `specs` in their order, and call the observer once for each piece.

        Unless `detailed`, the observer gets no values and no largest error. Memory use grows with the number of scales,
        not with the number of elements.
        """
        stored, format = self.stored, self.stored.format
        engine = host.quantize if device in (None, "cpu") else on_device(str(device))
        quantize = self._quantizer(engine)
        scales: list[Parts] = []

        def work(piece: tuple[int, Array]) -> tuple[Array, Array, Array, CastReport, Parts]:
            start, x = piece
            parts = quantize(x, start)
            restored = dequantized(parts, format) if detailed else None
            report = counted(x, parts, format, restored)
            shown = x if restored is None else restored
            return x.reshape(-1), shown.reshape(-1), stored.pack(parts.data), report, replace(parts, data=None)

        def pieces() -> Iterator[Array]:
            for x, restored, packed, report, parts in prefetcher.in_order(
                work, placed(matrices(self.tensor, stored.cut))
            ):
                scales.append(parts)
                observe(x, restored, report)
                yield packed

        write(stored.specs["data"], stored.in_groups(pieces()))
        arrays = stored.stored_parts(joined(format, stored.shape, scales))
        for part, spec in stored.specs.items():
            if part != "data":
                write(spec, [arrays[part]])

    def _quantizer(self, engine: Engine) -> Quantizer:
        among = None if self.group is None else self.group.extremes
        return Quantizer(self.tensor, self.stored.format, engine, self.random, among)

    def verify(self, written: Mapping[str, Tensor], everything: bool, caller: str) -> int:
        """Compare the written tensors (`written`, by name) with the reference; the number of compared elements.

        Unless `everything`, only a sample of each piece is compared. FileError if anything differs.
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
        compared = 0
        for (start, x), (codes, parts) in zip(placed(matrices(self.tensor, stored.cut)), stored_pieces, strict=True):
            rows = len(x) if everything else _sampled(format, x.shape[1])
            wanted = quantize(x[:rows], start)
            same = _same(wanted.data, codes[:rows]) and all(
                _same(array.reshape(-1), getattr(parts, part).reshape(-1)[: array.size])
                for part, array in (("scales", wanted.scales), ("zero_points", wanted.zero_points))
                if array is not None
            )
            if global_scale is not None:
                # Compared as it is stored: a reciprocal is rounded.
                known = stored.stored_parts(Parts(None, None, None, wanted.global_scale))
                same &= _same(known["global_scale"], global_scale)
            if not same:
                raise FileError(f"{caller}: tensor {self.tensor.name!r} is not what the reference gives")
            compared += wanted.data.size
        return compared


def unexpected(report: CastReport) -> CastReport:
    """The losses that should not occur in quantized tensors.

    That small values of a block become zero is normal, and so are saturated values: some formats clamp the largest.
    """
    return replace(report, saturated=0, underflowed=0)


def _sampled(format: Format, columns: int) -> int:
    """The number of first rows of a piece to compare: about `_SAMPLE` elements, in whole blocks."""
    block = format.block[0] if format.min_ndim == 2 and isinstance(format.block, tuple) else 1
    return max(1, _SAMPLE // columns // block) * block


def _same(wanted: Array, actual: Array) -> bool:
    return wanted.dtype == actual.dtype and wanted.tobytes() == actual.tobytes()
