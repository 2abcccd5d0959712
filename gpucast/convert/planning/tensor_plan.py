# SPDX-License-Identifier: Apache-2.0
"""Decides for each tensor of an open file what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucast import files
from gpucast.convert.scales import scale_styles
from gpucast.convert.scales.dequantized import Dequantized
from gpucast.convert.scales.per_file import FileScales, read_as_numbers
from gpucast.convert.scales.repack import Repacked, Rescaled, keeps_values
from gpucast.convert.scales.request import Choice, Request, holds_numbers, matches
from gpucast.convert.scales.scaling import FusedGroup, Scaled, scaled_storage
from gpucast.convert.scales.stored import Stored
from gpucast.core.dtypes import DType
from gpucast.core.dtypes.lookup import UNLIKE
from gpucast.core.rule import Options, resolve
from gpucast.files import FileError, Spec, Tensor, TensorFile
from gpucast.files.tensor import StoredTensor


def _is_narrowed(tensor: Tensor, dtype: DType) -> bool:
    """Whether numbers become such as others take for codes."""
    return dtype.bits <= 8 and dtype.family not in ("bool", "string") and holds_numbers(tensor)


def read_as(tensors: Sequence[Tensor], dtype: DType, choice: Choice, path: str) -> list[Tensor]:
    """The tensors, with raw elements read as `dtype` (the option --from).

    Raw elements are void elements of the width of `dtype`, as NumPy saves types that it lacks, and unsigned integers of
    that width in tensors that were chosen by name or are the only one.
    """
    result: list[Tensor] = []
    for tensor in tensors:
        asked_for = choice.asked_for(tensor, len(tensors) == 1)
        result.append(
            tensor.of_type(dtype) if isinstance(tensor, StoredTensor) and _is_raw(tensor, dtype, asked_for) else tensor
        )
    if all(new is old for new, old in zip(result, tensors, strict=True)):
        width = dtype.code_numpy.itemsize
        raise FileError(
            f"{path}: --from {dtype.name} fits no tensor: none has raw elements or unsigned codes of {width} bytes"
        )
    return result


def _is_raw(tensor: StoredTensor, dtype: DType, asked_for: bool) -> bool:
    element = tensor.element
    if element is None or element.itemsize != dtype.code_numpy.itemsize:
        return False
    if tensor.dtype is None:
        return element.kind == "V" and element.names is None and element.subdtype is None
    return asked_for and tensor.dtype.family == "int" and not tensor.dtype.signed


@dataclass(frozen=True)
class TensorPlan:
    """The plan of one tensor: it is cast to `dtype`, or kept if that is None. `bytes_out` is None for text."""

    name: str
    kind: str
    dtype: DType | None
    shape: tuple[int, ...]
    bytes_in: int
    bytes_out: int | None
    #: The names of the tensors that replace it: itself and its scales.
    names: tuple[str, ...]
    #: Why the tensor is kept although it was chosen to be cast.
    why: str = ""
    #: Whether every value is kept: its codes stay, and its scales are stored in another way.
    lossless: bool = False


class TensorPlanner:
    """Plans the tensors of an open file; `tensors` are read as the request asks."""

    def __init__(
        self,
        file: TensorFile,
        request: Request,
        alone: bool,
        scales: FileScales,
        groups: Mapping[str, FusedGroup] | None = None,
    ) -> None:
        """`groups`: the weights that share a global scale, by each of their names."""
        self._path, self._request, self._scales, self._groups = file.path, request, scales, groups or {}
        self.tensors: list[Tensor] = file.tensors
        if request.source_dtype is not None:
            self.tensors = read_as(file.tensors, request.source_dtype, request.choice, file.path)
        self.tensors = read_as_numbers(self.tensors, scales, file)
        self._alone = alone and len(self.tensors) == 1
        self._fixed = file.model.inputs if file.model is not None else set()
        self._no_weights = {} if file.model is None else {name: why for name, why in file.model.weights.items() if why}
        self._metadata = file.metadata
        self._stored: dict[str, Stored | str | None] = {}
        #: Whether a tensor keeps all its values, where that has been found out.
        self._repacked: dict[str, bool] = {}

    def plan(self, tensor: Tensor, out: str) -> tuple[TensorPlan, Sequence[Spec]]:
        """The plan of a tensor, and the tensors to write to the file `out` for it."""
        dtype, why = self._checked_target(tensor, out)
        lossless = False
        if dtype is None:
            specs: list[Spec] = [files.kept(tensor, out)]
        else:
            if isinstance(tensor, Dequantized):
                tensor.check_scales()
            scaled = self.scaled(tensor)
            if scaled is not None and into_model(out) != (self._request.style == scale_styles.MODELS):
                raise FileError(f"{out}: --style qdq is for models (.onnx), and they have no other with --scale")
            if scaled is not None and not into_model(out) and not out.lower().endswith(".safetensors"):
                raise FileError(f"{out}: tensors with scales are written to .safetensors files alone")
            plain = Spec(tensor.name, dtype, tensor.shape, is_plain=_is_narrowed(tensor, dtype))
            specs = [plain] if scaled is None else list(scaled.specs)
            lossless = isinstance(scaled, Repacked)
        sizes = [spec.source.nbytes if spec.source else _nbytes(spec) for spec in specs]
        bytes_out = None if None in sizes else sum(size for size in sizes if size is not None)
        kind = tensor.kind if tensor.dtype is None or isinstance(tensor, Dequantized) else tensor.dtype.name
        names = tuple(spec.name for spec in specs)
        plan = TensorPlan(tensor.name, kind, dtype, tensor.shape, tensor.nbytes, bytes_out, names, why, lossless)
        return plan, specs

    def scaled(self, tensor: Tensor) -> Scaled | None:
        """How a tensor is quantized, if it gets scales; None if it gets none."""
        stored = self._storage(tensor)
        if not isinstance(stored, Stored):
            return None
        if tensor.name not in self._repacked:
            self._repacked[tensor.name] = keeps_values(tensor, stored)
        changed = Rescaled if self._request.repack else Scaled
        how = Repacked if self._repacked[tensor.name] else changed
        return how(tensor, stored, self._request, self._groups.get(tensor.name))

    def metadata(self) -> dict[str, str]:
        """The metadata of the written file."""
        kept = {key: text for key, text in self._metadata.items() if key not in self._scales.metadata}
        every = [stored for tensor in self.tensors if isinstance(stored := self._storage(tensor), Stored)]
        return kept | dict(entry for stored in every for entry in stored.metadata)

    def _storage(self, tensor: Tensor) -> Stored | str | None:
        """As `scaled_storage`, for the type that a tensor is cast to; None where it is kept."""
        if tensor.name not in self._stored:
            dtype = self._target(tensor)
            stored = None if dtype is None else scaled_storage(tensor, dtype, self._request, self._path)
            self._stored[tensor.name] = stored
        return self._stored[tensor.name]

    def _target(self, tensor: Tensor) -> DType | None:
        is_kept = tensor.name in self._scales.kept or tensor.name in self._scales.carried
        is_kept |= self._request.repack and not isinstance(tensor, Dequantized)
        choice = self._request.choice
        is_kept |= self._why_no_weight(tensor) != ""
        return None if is_kept else choice.target(tensor, self._alone)

    def _why_no_weight(self, tensor: Tensor) -> str:
        """Why a floating initializer of a model is not cast, unless its name was chosen."""
        is_chosen = self._request.choice.asked_for(tensor) or matches(self._request.choice.as_weights, tensor.name)
        is_float = tensor.dtype is not None and tensor.dtype.is_float
        return "" if is_chosen or not is_float else self._no_weights.get(tensor.name, "")

    def _checked_target(self, tensor: Tensor, out: str) -> tuple[DType | None, str]:
        """The type to cast a tensor to, or None to keep it. The text is the reason for keeping a tensor that was
        chosen.
        """
        choice = self._request.choice
        dtype = self._target(tensor)
        if dtype is None:
            return None, self._why_no_weight(tensor)
        if into_model(out) and tensor.name in self._fixed and not choice.asked_for(tensor):
            return None, "it is an input of the graph too"
        if tensor.dtype is None:
            # NumPy's void is what it saves for types that it lacks.
            is_raw = tensor.kind.lstrip("<>|").startswith("V")
            way = "give --from T if these are raw elements of a type T, or leave it out" if is_raw else "leave it out"
            long = f" (longdouble: {UNLIKE['longdouble']})" if tensor.kind.endswith("f16") else ""
            raise FileError(
                f"{self._path}: tensor {tensor.name!r} has type {tensor.kind}{long}, which Cast does not take; "
                f"{way} with --exclude"
            )
        resolve(
            tensor.dtype, dtype, Options(**self._request.attributes, caller=f"{self._path}: tensor {tensor.name!r}")
        )
        stored = self._storage(tensor)
        return (None, stored) if isinstance(stored, str) else (dtype, "")


def into_model(out: str) -> bool:
    return out.lower().endswith(files.MODEL)


def _nbytes(spec: Spec) -> int | None:
    return None if spec.dtype is None or spec.dtype.family == "string" else spec.dtype.nbytes(spec.size)
