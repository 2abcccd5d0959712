# SPDX-License-Identifier: Apache-2.0
"""What is asked for, and what becomes by it of each tensor of an open file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpucast import files
from gpucast.checkpoints.planning.selection import Choice, read_as
from gpucast.checkpoints.scales import quantize as scaling
from gpucast.checkpoints.scales import styles as scale_styles
from gpucast.checkpoints.scales.dequantized import Dequantized
from gpucast.checkpoints.scales.per_file import FileScales
from gpucast.checkpoints.scales.quantize import Scaled
from gpucast.checkpoints.scales.stored import Stored
from gpucast.checkpoints.streaming.seeds import tensor_seed
from gpucast.core.dtypes import DType
from gpucast.core.random import Random, resolve_random
from gpucast.core.rule import resolve
from gpucast.files import FileError, Spec, Tensor, TensorFile

Detail = Literal["counts", "errors", "all"]


@dataclass(frozen=True)
class Request:
    """What is asked for. `attributes`: the keywords of `gpucast.cast`; `source_dtype`: how raw elements are read."""

    choice: Choice
    attributes: Mapping[str, Any]
    scale: str | None = None
    source_dtype: DType | None = None
    #: What is worked out about each tensor: what was lost; the largest error as well; all that a report tells.
    detail: Detail = "counts"
    #: How scales are stored: one of `gpucast.checkpoints.scales.styles.STYLES`.
    style: str = scale_styles.STYLES[0]
    #: For stochastic rounding; each tensor has a seed of its own that follows from it.
    seed: int | None = None

    def __post_init__(self) -> None:
        resolve_random(self.attributes.get("rounding"), self.seed, None, "convert")

    def random(self, name: str) -> Random | None:
        """The random bits of the tensor of that name; None: nothing is rounded at random."""
        return None if self.seed is None else Random(tensor_seed(self.seed, name))


@dataclass(frozen=True)
class TensorPlan:
    """`dtype` is what the tensor is cast to, None where it is kept; `bytes_out` is None for text."""

    name: str
    kind: str
    dtype: DType | None
    shape: tuple[int, ...]
    bytes_in: int
    bytes_out: int | None
    #: The names of the tensors that take its place: its own, and those of its scales.
    names: tuple[str, ...]
    #: Why a tensor that was to be cast is kept.
    why: str = ""


class TensorPlanner:
    """The tensors of an open file, as a request reads them, and what becomes of each."""

    def __init__(self, file: TensorFile, request: Request, alone: bool, scales: FileScales) -> None:
        self._path, self._request, self._scales = file.path, request, scales
        self.tensors: list[Tensor] = file.tensors
        if request.source_dtype is not None:
            self.tensors = read_as(file.tensors, request.source_dtype, request.choice, file.path)
        self.tensors = _read_as_numbers(self.tensors, scales, file.path)
        self._alone = alone and len(self.tensors) == 1
        self._fixed = file.model.inputs if file.model is not None else set()
        self._metadata = file.metadata
        self._stored: dict[str, Stored] | None = None

    def planned(self, tensor: Tensor, out: str) -> tuple[TensorPlan, Sequence[Spec]]:
        """The plan of a tensor, and the tensors to write into the file `out`."""
        dtype, why = self._dtype(tensor, out)
        if dtype is None:
            specs: list[Spec] = [files.kept(tensor, out)]
        else:
            found = self.scaled(tensor)
            if found is not None and not out.lower().endswith(".safetensors"):
                raise FileError(f"{out}: tensors with scales are written to .safetensors files alone")
            specs = [Spec(tensor.name, dtype, tensor.shape)] if found is None else list(found.specs)
        sizes = [spec.source.nbytes if spec.source else _nbytes(spec) for spec in specs]
        bytes_out = None if None in sizes else sum(size for size in sizes if size is not None)
        kind = tensor.kind if tensor.dtype is None or isinstance(tensor, Dequantized) else tensor.dtype.name
        names = tuple(spec.name for spec in specs)
        return TensorPlan(tensor.name, kind, dtype, tensor.shape, tensor.nbytes, bytes_out, names, why), specs

    def scaled(self, tensor: Tensor) -> Scaled | None:
        """How a tensor is cast that gets scales; None where it gets none."""
        stored = self._all_stored().get(tensor.name)
        return None if stored is None else Scaled(tensor, stored, self._request.random(tensor.name))

    def metadata(self) -> dict[str, str]:
        """The metadata of the file that is written."""
        kept = {key: text for key, text in self._metadata.items() if key not in self._scales.metadata}
        return kept | dict(entry for stored in self._all_stored().values() for entry in stored.metadata)

    def _all_stored(self) -> dict[str, Stored]:
        """How the tensors lie that get scales."""
        if self._stored is None:
            request, found = self._request, dict[str, Stored]()
            for tensor in self.tensors:
                dtype = self._target(tensor)
                stored = None if dtype is None else scaled_storage(tensor, dtype, request, self._path)
                if isinstance(stored, Stored):
                    found[tensor.name] = stored
            self._stored = found
        return self._stored

    def _target(self, tensor: Tensor) -> DType | None:
        return None if tensor.name in self._scales.kept else self._request.choice.target(tensor, self._alone)

    def _dtype(self, tensor: Tensor, out: str) -> tuple[DType | None, str]:
        """What a tensor is cast to; None: it is kept, and if it was to be cast, why."""
        choice = self._request.choice
        dtype = self._target(tensor)
        if dtype is None:
            return None, ""
        into_model = out.lower().endswith(files.MODEL)
        if into_model and tensor.name in self._fixed and not choice.asked_for(tensor):
            return None, ""
        if tensor.dtype is None:
            raise FileError(
                f"{self._path}: tensor {tensor.name!r} has type {tensor.kind}, which Cast does not take; "
                "give --from T if these are raw elements of a type T, or leave it out with --exclude"
            )
        resolve(tensor.dtype, dtype, **self._request.attributes, who=f"{self._path}: tensor {tensor.name!r}")
        stored = scaled_storage(tensor, dtype, self._request, self._path)
        return (None, stored) if isinstance(stored, str) else (dtype, "")


def scaled_storage(tensor: Tensor, dtype: DType, request: Request, path: str) -> Stored | str | None:
    """As `scaling.scaled_storage`, for what is asked for."""
    asked_for = request.choice.asked_for(tensor)
    return scaling.scaled_storage(tensor, dtype, request.scale, request.style, request.attributes, path, asked_for)


def _read_as_numbers(tensors: Sequence[Tensor], scales: FileScales, path: str) -> list[Tensor]:
    """The tensors, those of codes with scales as one each."""
    if not scales.dropped:
        return list(tensors)
    named = {tensor.name: tensor for tensor in tensors}
    numbers: dict[str, Tensor] = {found.name: Dequantized.of(found, named, path) for found in scales.found}
    return [
        numbers.get(tensor.name, tensor)
        for tensor in tensors
        if tensor.name in numbers or tensor.name not in scales.dropped
    ]


def _nbytes(spec: Spec) -> int | None:
    return None if spec.dtype is None or spec.dtype.family == "string" else spec.dtype.nbytes(spec.size)
