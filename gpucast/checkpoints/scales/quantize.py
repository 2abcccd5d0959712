# SPDX-License-Identifier: Apache-2.0
"""Tensors that are divided by scales before they are rounded to few bits, the scales being stored beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucast.casting.loss_counts import CastReport
from gpucast.checkpoints.losses.scaled_counts import counted
from gpucast.checkpoints.scales import styles as scale_styles
from gpucast.checkpoints.scales.stored import Stored
from gpucast.checkpoints.scales.styles import Unsuitable
from gpucast.checkpoints.streaming.pieces import (
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

#: What --scale takes.
SCALES = ("none", "per-tensor", "per-channel", "block", "mx", "nvfp4")

_BLOCKS = {"per-tensor": "tensor", "per-channel": "axis", "block": "128"}
_MX = {"FLOAT8E4M3FN": "mxfp8e4m3", "FLOAT8E5M2": "mxfp8e5m2", "FLOAT6E2M3": "mxfp6e2m3", "FLOAT6E3M2": "mxfp6e3m2"}
#: The elements of a piece that are compared when not all are.
_SAMPLE = 1 << 10

#: Writes one tensor, its elements as flat pieces in order; gives the bytes.
Write = Callable[[Spec, Iterable[Array]], int]
#: Takes a piece of the source (flat), the values that it will read as again (scales applied; of no meaning where nobody
#: wants details), and what was lost: for progress, counts and statistics.
Observe = Callable[[Array, Array, CastReport], None]


def is_needed(src: DType | None, dst: DType) -> bool:
    """Whether a cast must say what it does about scales: floating values that go to 8 bits or fewer."""
    if src is None or src is dst or dst.family == "bool":
        return False
    return src.is_float and 0 < dst.bits <= 8


def formats(dtype: DType) -> dict[str, Format]:
    """The format that each word of --scale means for a type."""
    name = dtype.name.lower()
    if dtype.family == "int" and dtype.bits <= 8:
        base = name if dtype.signed else f"{name}_zp"
        return {scale: FORMATS[f"{base}_{block}"] for scale, block in _BLOCKS.items()}
    found = {}
    if name in ("float8e4m3fn", "float8e5m2"):
        found = {scale: FORMATS[f"{name}_{block}"] for scale, block in {**_BLOCKS, "block": "128x128"}.items()}
    if dtype.name in _MX:
        found["mx"] = FORMATS[_MX[dtype.name]]
    if dtype.name == "FLOAT4E2M1":
        found = {"mx": FORMATS["mxfp4"], "nvfp4": FORMATS["nvfp4"]}
    return found


def scaled_storage(
    tensor: Tensor,
    dtype: DType,
    scale: str | None,
    style: str,
    attributes: Mapping[str, Any],
    path: str,
    asked_for: bool = True,
) -> Stored | str | None:
    """How a tensor of the file `path` is cast to `dtype`: None: by a plain cast; a text: not at all, and why.

    `scale` is one of `SCALES`, or None where nothing was said. It does not matter to tensors that need none.
    FileError for what cannot be.
    """
    if not is_needed(tensor.dtype, dtype) or scale == "none":
        return None
    who = f"{path}: tensor {tensor.name!r}"
    assert tensor.dtype is not None
    known = formats(dtype)
    accepted = ", ".join([*known, "none"])
    if scale is None:
        raise FileError(
            f"{who} from {tensor.dtype.name} to {dtype.name}: so few bits need a word about scales; "
            f"give --scale {accepted} (none: a plain cast)"
        )
    format = known.get(scale)
    if format is None:
        raise FileError(f"{who}: --scale {scale} is not for {dtype.name}; expected {accepted}")
    refusal = scale_styles.refused(style, format)
    if refusal is not None:
        raise FileError(f"{who}: --style {style} cannot hold {dtype.name} with --scale {scale}: {refusal}")
    for option, default in (("saturate", True), ("round_mode", "up"), ("rounding", None), ("overflow", None)):
        at_random = option == "rounding" and attributes.get(option) == STOCHASTIC and format.element.family == "float"
        if attributes.get(option, default) != default and not at_random:
            raise FileError(f"{who}: --{option.replace('_', '-')} has no meaning with --scale {scale}; leave it out")
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
    """A tensor that becomes codes and scales."""

    tensor: Tensor
    stored: Stored
    #: The bits for stochastic rounding.
    random: Random | None = None

    @property
    def specs(self) -> Sequence[Spec]:
        """The tensors that take its place in the file, the codes first."""
        return list(self.stored.specs.values())

    def write(self, write: Write, observe: Observe, ahead: Prefetcher, device: str | None, detailed: bool) -> None:
        """Write all of `specs` in their order, and show every piece to the observer once.

        Where nobody wants details, it is shown no values, and no largest error. Memory grows with the number of scales
        alone.
        """
        stored, format = self.stored, self.stored.format
        engine = host.quantize if device in (None, "cpu") else on_device(str(device))
        quantize = Quantizer(self.tensor, format, engine, self.random)
        scales: list[Parts] = []

        def work(piece: tuple[int, Array]) -> tuple[Array, Array, Array, CastReport, Parts]:
            start, x = piece
            parts = quantize(x, start)
            restored = dequantized(parts, format) if detailed else None
            report = counted(x, parts, format, restored)
            shown = x if restored is None else restored
            return x.reshape(-1), shown.reshape(-1), stored.pack(parts.data), report, replace(parts, data=None)

        def pieces() -> Iterator[Array]:
            for x, restored, packed, report, parts in ahead.in_order(work, placed(matrices(self.tensor, stored.cut))):
                scales.append(parts)
                observe(x, restored, report)
                yield packed

        write(stored.specs["data"], stored.in_groups(pieces()))
        arrays = stored.stored_parts(joined(format, stored.shape, scales))
        for part, spec in stored.specs.items():
            if part != "data":
                write(spec, [arrays[part]])

    def verify(self, found: Mapping[str, Tensor], everything: bool, who: str) -> int:
        """Compare what was written, by name, with the reference, or a sample of each piece; how many elements were
        compared. FileError where they differ."""
        stored, format = self.stored, self.stored.format
        tensors = {part: found[spec.name] for part, spec in stored.specs.items()}
        for part, spec in stored.specs.items():
            if tensors[part].dtype is not spec.dtype or tensors[part].shape != spec.shape:
                said = f"{tensors[part].kind} {tensors[part].shape}"
                raise FileError(f"{who}: tensor {spec.name!r} is {said}; expected {spec.dtype} {spec.shape}")
        quantize = Quantizer(self.tensor, format, by_reference, self.random)
        written = zip(
            stored.codes(tensors["data"]), sliced(format, stored.cut, stored.whole_parts(tensors)), strict=True
        )
        compared = 0
        for (start, x), (codes, parts) in zip(placed(matrices(self.tensor, stored.cut)), written, strict=True):
            rows = len(x) if everything else _sampled(format, x.shape[1])
            wanted = quantize(x[:rows], start)
            same = _same(wanted.data, codes[:rows]) and all(
                _same(array.reshape(-1), getattr(parts, part).reshape(-1)[: array.size])
                for part, array in (("scales", wanted.scales), ("zero_points", wanted.zero_points))
                if array is not None
            )
            # What there is one of for the tensor, as it is stored: a reciprocal is rounded.
            same &= all(
                _same(array, tensors[part].read().reshape(-1))
                for part, array in stored.stored_parts(Parts(None, None, None, wanted.global_scale)).items()
            )
            if not same:
                raise FileError(f"{who}: tensor {self.tensor.name!r} is not what the reference gives")
            compared += wanted.data.size
        return compared


def unexpected(report: CastReport) -> CastReport:
    """What of the losses says that something is wrong: with scales small values of a block become zero, and those of
    some formats clamp its largest."""
    return replace(report, saturated=0, underflowed=0)


def _sampled(format: Format, columns: int) -> int:
    """The first rows of a piece: some, and whole blocks."""
    block = format.block[0] if format.min_ndim == 2 and isinstance(format.block, tuple) else 1
    return max(1, _SAMPLE // columns // block) * block


def _same(wanted: Array, found: Array) -> bool:
    return wanted.dtype == found.dtype and wanted.tobytes() == found.tobytes()
