# SPDX-License-Identifier: Apache-2.0
"""The user's request: which tensors are cast and to which types. It decides for each tensor of an open file."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpucast import files
from gpucast.convert.scales import companions, scale_styles, scaling
from gpucast.convert.scales.dequantized import Dequantized
from gpucast.convert.scales.per_file import FileScales, read_as_numbers
from gpucast.convert.scales.repack import Repacked, Rescaled, keeps_values
from gpucast.convert.scales.scaling import FusedGroup, Scaled
from gpucast.convert.scales.stored import Stored
from gpucast.convert.streaming.pieces import tensor_seed
from gpucast.core.dtypes import DType
from gpucast.core.dtypes.lookup import UNLIKE
from gpucast.core.fuse import Random, resolve_random
from gpucast.core.rule import Options, resolve
from gpucast.files import FileError, Spec, Tensor, TensorFile
from gpucast.files.tensor import StoredTensor
from gpucast.quantization.formats import ScaleRule

Detail = Literal["errors", "all"]


@dataclass(frozen=True)
class SelectionRule:
    """Cast the tensors whose names match `pattern` to `dtype`; None keeps them as they are."""

    pattern: str
    dtype: DType | None

    def __str__(self) -> str:
        return f"{self.pattern}={'keep' if self.dtype is None else self.dtype.name}"


@dataclass(frozen=True)
class Choice:
    """Decides by name whether a tensor is cast. Patterns are shell wildcards. The first line that applies decides:

    - A pattern of `exclude` matches: the tensor is kept.
    - A rule matches: the first matching rule gives the type, or keeps the tensor.
    - `include` has patterns: the tensor is cast to `to` if one matches, otherwise kept.
    - The tensor is floating, or the only tensor of the only file: it is cast to `to`.
    - Otherwise it is kept.
    """

    to: DType
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    rules: Sequence[SelectionRule] = ()
    #: What becomes of tensors beside codes: kept as they are, left out, or taken for plain numbers.
    keep: Sequence[str] = ()
    drop: Sequence[str] = ()
    as_weights: Sequence[str] = ()

    def target(self, tensor: Tensor, alone: bool = False) -> DType | None:
        """The type that a tensor is cast to; None if it is kept."""
        if _any((*self.exclude, *self.keep), tensor.name):
            return None
        for rule in self.rules:
            if fnmatch.fnmatchcase(tensor.name, rule.pattern):
                return rule.dtype
        if self.include:
            return self.to if _any(self.include, tensor.name) else None
        return self.to if alone or _holds_numbers(tensor) else None

    def excludes(self, name: str) -> bool:
        """Whether a pattern of `exclude` matches."""
        return _any(self.exclude, name)

    def keeps(self, name: str) -> bool:
        return _any(self.keep, name)

    def drops(self, name: str) -> bool:
        return _any(self.drop, name)

    def takes_for_weight(self, name: str) -> bool:
        return _any(self.as_weights, name)

    def asked_for(self, tensor: Tensor, alone: bool = False) -> bool:
        """Whether the tensor was chosen by name, or as the only one, and not just because it is floating."""
        if self.target(tensor, alone) is None:
            return False
        named = (*self.include, *(rule.pattern for rule in self.rules))
        return alone or _any(named, tensor.name)

    def check(self, names: Sequence[str], cast: bool, path: str, why: str) -> None:
        """FileError if a pattern matches no tensor, or if nothing is cast; `why` gives reasons, if any."""
        if not names and path.lower().endswith(files.MODEL):
            raise FileError(f"{path}: the model has no initializers, and no Constant that is a weight: nothing to cast")
        if not names:
            raise FileError(f"{path}: holds no tensors")
        options = [("--include", pattern, pattern) for pattern in self.include]
        for option in ("exclude", "keep", "drop", "as_weights"):
            options += [(f"--{option.replace('_', '-')}", pattern, pattern) for pattern in getattr(self, option)]
        options += [("--rule", str(rule), rule.pattern) for rule in self.rules]
        for option, value, pattern in options:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                known = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
                raise FileError(f"{path}: no tensor matches {option} {value!r}; it holds {known}")
        if cast:
            return
        if why:
            raise FileError(f"{path}: none of its {len(names)} tensors can be cast: {why}")
        if self.include or self.exclude or self.rules:
            raise FileError(f"{path}: --include, --exclude and --rule leave none of its {len(names)} tensors to cast")
        raise FileError(f"{path}: none of its {len(names)} tensors is of a floating type; give --include")


def _holds_numbers(tensor: Tensor) -> bool:
    """Whether a tensor is of a floating type, or a plain cast of gpucast. Other integers may be indices, and codes of
    other programs have scales."""
    return tensor.dtype is not None and (tensor.dtype.is_float or companions.is_plain_cast(tensor))


def _is_narrowed(tensor: Tensor, dtype: DType) -> bool:
    """Whether numbers become such as others take for codes."""
    return dtype.bits <= 8 and dtype.family not in ("bool", "string") and _holds_numbers(tensor)


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


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
class Request:
    """The user's request. `attributes` are keywords of `gpucast.cast`; raw elements are read as `source_dtype`."""

    choice: Choice
    attributes: Mapping[str, Any]
    scale: str | None = None
    source_dtype: DType | None = None
    #: What is computed for each tensor: counts of losses and errors, or everything that a report shows.
    detail: Detail = "errors"
    #: How scales are stored: one of `gpucast.convert.scales.scale_styles.STYLES`; None where nobody said.
    asked_style: str | None = None
    #: For stochastic rounding. Each tensor gets its own seed, derived from this one.
    seed: int | None = None
    #: How the scales are found; None: as the style's own tool does.
    scale_rule: ScaleRule | None = None
    #: Checkpoints are written in files of at most so many bytes of tensors; None: in those that they have.
    shard_size: int | None = None
    #: Only tensors that are codes with scales are converted, and every number of theirs is kept.
    repack: bool = False

    def __post_init__(self) -> None:
        resolve_random(self.attributes.get("rounding"), self.seed, None, "convert")

    @property
    def style(self) -> str:
        """How scales are stored."""
        return self.asked_style or scale_styles.STYLES[0]

    def random(self, name: str) -> Random | None:
        """The random bits for the tensor `name`; None without stochastic rounding."""
        return None if self.seed is None else Random(tensor_seed(self.seed, name))


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
        self.tensors = read_as_numbers(self.tensors, scales, file.path)
        self._alone = alone and len(self.tensors) == 1
        self._fixed = file.model.inputs if file.model is not None else set()
        self._no_weights = {} if file.model is None else {name: why for name, why in file.model.weights.items() if why}
        self._metadata = file.metadata
        self._stored: dict[str, Stored] | None = None
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
            if scaled is not None and into_model(out) != (self._request.style == "qdq"):
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
        stored = self._all_stored().get(tensor.name)
        if stored is None:
            return None
        if tensor.name not in self._repacked:
            self._repacked[tensor.name] = keeps_values(tensor, stored)
        if self._repacked[tensor.name]:
            return Repacked(tensor, stored)
        if self._request.repack:
            return Rescaled(tensor, stored, None, self._groups.get(tensor.name))
        return Scaled(tensor, stored, self._request.random(tensor.name), self._groups.get(tensor.name))

    def metadata(self) -> dict[str, str]:
        """The metadata of the written file."""
        kept = {key: text for key, text in self._metadata.items() if key not in self._scales.metadata}
        return kept | dict(entry for stored in self._all_stored().values() for entry in stored.metadata)

    def _all_stored(self) -> dict[str, Stored]:
        """How each tensor that gets scales is stored, by name."""
        if self._stored is None:
            request, by_name = self._request, dict[str, Stored]()
            for tensor in self.tensors:
                dtype = self._target(tensor)
                stored = None if dtype is None else scaled_storage(tensor, dtype, request, self._path)
                if isinstance(stored, Stored):
                    by_name[tensor.name] = stored
            self._stored = by_name
        return self._stored

    def _target(self, tensor: Tensor) -> DType | None:
        is_kept = tensor.name in self._scales.kept or tensor.name in self._scales.carried
        is_kept |= self._request.repack and not isinstance(tensor, Dequantized)
        choice = self._request.choice
        is_kept |= self._why_no_weight(tensor) != ""
        return None if is_kept else choice.target(tensor, self._alone)

    def _why_no_weight(self, tensor: Tensor) -> str:
        """Why a floating initializer of a model is not cast, unless its name was chosen."""
        is_chosen = self._request.choice.asked_for(tensor) or self._request.choice.takes_for_weight(tensor.name)
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
            return None, ""
        if tensor.dtype is None:
            # NumPy's void is what it saves for types that it lacks.
            is_raw = not tensor.kind.lstrip("<>").startswith(("f", "c", "O"))
            way = "give --from T if these are raw elements of a type T, or leave it out" if is_raw else "leave it out"
            long = f" (longdouble: {UNLIKE['longdouble']})" if tensor.kind.endswith("f16") else ""
            raise FileError(
                f"{self._path}: tensor {tensor.name!r} has type {tensor.kind}{long}, which Cast does not take; "
                f"{way} with --exclude"
            )
        resolve(
            tensor.dtype, dtype, Options(**self._request.attributes, caller=f"{self._path}: tensor {tensor.name!r}")
        )
        stored = scaled_storage(tensor, dtype, self._request, self._path)
        return (None, stored) if isinstance(stored, str) else (dtype, "")


def into_model(out: str) -> bool:
    return out.lower().endswith(files.MODEL)


def scaled_storage(tensor: Tensor, dtype: DType, request: Request, path: str) -> Stored | str | None:
    """As `scaling.scaled_storage`, with the options of the request."""
    asked_for = request.choice.asked_for(tensor)
    return scaling.scaled_storage(
        tensor,
        dtype,
        request.scale,
        request.style,
        request.attributes,
        path,
        asked_for,
        request.scale_rule,
        request.repack,
    )


def _nbytes(spec: Spec) -> int | None:
    return None if spec.dtype is None or spec.dtype.family == "string" else spec.dtype.nbytes(spec.size)
