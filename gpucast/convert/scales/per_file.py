# SPDX-License-Identifier: Apache-2.0
"""Decides for each file which codes and scales are read as numbers, and which are kept as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from gpucast.convert.scales import comfyui, companions
from gpucast.convert.scales.companions import Companion, Fate
from gpucast.convert.scales.dequantized import Dequantized, DetectedTensor
from gpucast.convert.scales.detect import Catalogue
from gpucast.convert.scales.request import Choice, matches
from gpucast.convert.scales.scale_styles import DEFAULT, ENTRY, RECIPE
from gpucast.core.dtypes import dtype
from gpucast.files import FileError, Tensor, TensorFile, safetensors
from gpucast.files.tensor import LoadedTensor

_FLOAT = dtype("FLOAT")


@dataclass
class FileScales:
    """The tensors of one file that are codes or scales."""

    #: Tensors that are read as numbers; their codes are in this file.
    detected: list[DetectedTensor] = field(default_factory=list)
    #: Names in this file that are kept as they are, and names that become part of a detected tensor.
    kept: set[str] = field(default_factory=set)
    #: Names that are no part of codes, and are kept as they are.
    carried: set[str] = field(default_factory=set)
    #: Those of them, of one number, that loaders of the written style take as vectors.
    vectors: set[str] = field(default_factory=set)
    #: Names that OUT does not have, with the reason for each; "" for what becomes part of numbers.
    dropped: dict[str, str] = field(default_factory=dict)
    #: Keys of the metadata that are no longer true.
    metadata: set[str] = field(default_factory=set)
    #: The styles of tensors that are cast (True) and of those that are kept.
    styles: dict[bool, set[str]] = field(default_factory=lambda: {True: set(), False: set()})


def scales_by_file(
    catalogue: Catalogue, choice: Choice, is_cast: Callable[[Tensor], bool], carried: Container[Fate]
) -> dict[str, FileScales]:
    """The codes and scales of each file. `is_cast`: whether a tensor of numbers is cast; `carried`: which scales that
    belong to no weight the written style has a place for.

    If one part of a quantized tensor is excluded, all its parts are kept. FileError if a tensor that would be cast
    cannot be read as numbers, if what is said of it contradicts it, and for all that is not understood beside codes.
    """
    every = [tensor for tensor in catalogue.detect() if not matches(choice.as_weights, tensor.name)]
    of_file = {path: FileScales() for path in catalogue.files}
    cast_in: set[str] = set()
    for tensor in every:
        path = tensor.paths[tensor.name]
        numbers = _numbers(tensor)
        left = {name for name in tensor.paths if matches((*choice.exclude, *choice.keep), name)}
        cast = is_cast(numbers) and not left
        for name, where in tensor.paths.items():
            of = f"a part of {numbers.name!r}, whose numbers need it"
            if name not in left and matches(choice.as_weights, name):
                raise FileError(
                    f"{where}: --as-weights is for {name!r}, {of}; name {tensor.name!r}, too, or leave all parts as "
                    "they are with --exclude"
                )
            if cast and matches(choice.drop, name):
                raise FileError(
                    f"{where}: --drop is for {name!r}, {of}; leave it out of the pattern, or keep all parts with "
                    "--exclude"
                )
            named = None if name in left else choice.naming(name, [numbers.name])
            if named is not None:
                raise FileError(
                    f"{where}: {named} names {name!r}, {of}, and not the weight itself; name {numbers.name!r}, keep "
                    "all parts with --exclude, or take them for plain numbers with --as-weights PATTERN"
                )
        if cast and tensor.stored is None:
            raise FileError(f"{tensor.problem}; leave {numbers.name!r} as it is with --exclude")
        for name, where in tensor.paths.items():
            if cast:
                of_file[where].dropped[name] = ""
            else:
                of_file[where].kept.add(name)
        if cast:
            of_file[path].detected.append(tensor)
            of_file[path].metadata |= {ENTRY + tensor.base, RECIPE, comfyui.METADATA}
            cast_in.add(os.path.dirname(path))
        of_file[path].styles[cast].add(tensor.style)
    _check_beside(catalogue, every, cast_in, choice, is_cast, carried, of_file)
    for path, file in catalogue.files.items():
        markers = set(filter(comfyui.is_marker, file.tensors))
        if markers and "comfyui" in of_file[path].styles[True]:
            if "comfyui" in of_file[path].styles[False]:
                raise FileError(
                    f"{path}: has the mark {min(markers)!r} of all scales; cast all its weights (--rule '*=T'), or none"
                )
            of_file[path].dropped |= dict.fromkeys(markers, "")
        else:
            of_file[path].kept |= markers
        if comfyui.METADATA in file.metadata and all(of_file[path].styles.values()):
            raise FileError(f"{path}: its metadata tell of all scales; cast all its weights (--rule '*=T'), or none")
    return of_file


def _check_beside(
    catalogue: Catalogue,
    every: Sequence[DetectedTensor],
    cast_in: AbstractSet[str],
    choice: Choice,
    is_cast: Callable[[Tensor], bool],
    carried: Container[Fate],
    of_file: Mapping[str, FileScales],
) -> None:
    """Decide about each tensor that is no part of codes. FileError for one that is not understood, and for a folder of
    whose quantization the same is true."""
    problems: list[tuple[bool, bool, str]] = []
    beside = [one for one in described(catalogue, every) if not matches(choice.exclude, one.tensor.name)]
    # Where only some names were chosen, all others stay what they are.
    at_work = cast_in | {
        one.folder for one in beside if one.is_closed and is_cast(one.tensor) and not choice.asked_for(one.tensor)
    }
    # Layers that had no codes have no scale of inputs.
    has_inputs = "inputs" in carried and not any(is_cast(one.tensor) for one in beside)
    static = _with_scales_of_inputs(catalogue, of_file) if has_inputs else set()
    weights = [one.base for one in every]
    for one in beside:
        name, folder, scales, row = one.tensor.name, one.folder, of_file[one.path], one.companion
        if matches(choice.drop, name):
            scales.dropped[name] = "by --drop"
        elif matches(choice.keep, name):
            scales.carried.add(name)
        elif matches(choice.as_weights, name):
            continue
        elif row is not None:
            if (named := choice.naming(name, weights)) is not None:
                raise FileError(f"{one.path}: {named} names {name!r}, which is {row.what}{_WAYS}")
            is_of_layer = name.endswith(companions.INPUT) and folder in static
            is_of_cache = row.fate == "cache" and catalogue.declared(one.path).cache is not None
            if folder in cast_in and not (row.fate in carried and (is_of_layer or is_of_cache)):
                scales.dropped[name] = row.what
            else:
                scales.carried.add(name)
                if folder in cast_in:
                    scales.vectors.add(name)
        elif one.why and (folder in at_work or is_cast(one.tensor)):
            known = companions.companion(name)
            is_strange, why = known is None or known.fate != "refused", f"{one.path}: tensor {name!r} {one.why}{_WAYS}"
            problems.append((is_strange, one.tensor.dtype is not None, why))
    _check_declared(catalogue, choice, at_work, of_file)
    # What is known to be of another tool says most, and then a type that nobody knows.
    if problems:
        raise FileError(min(problems, key=lambda problem: problem[:2])[2])


def _with_scales_of_inputs(catalogue: Catalogue, of_file: Mapping[str, FileScales]) -> set[str]:
    """The folders of float8 of whose layers that will have codes each has one scale for its inputs, which is one number
    and goes with float8, too."""
    every = [(one, path) for path, file in of_file.items() for one in file.detected]
    found = {os.path.dirname(path) for _, path in every}
    for one, path in every:
        name = one.base.removesuffix("weight").rstrip(".") + companions.INPUT
        near = catalogue.path_of(name, path)
        scale = None if near is None else catalogue.files[near].tensors[name]
        is_float8 = one.stored is not None and one.stored.format.element.name == "FLOAT8E4M3FN"
        if not is_float8 or scale is None or scale.size != 1 or scale.dtype is None or not scale.dtype.is_float:
            found.discard(os.path.dirname(path))
    return found


class Beside(NamedTuple):
    """A tensor that is no part of codes."""

    path: str
    tensor: Tensor
    #: Whether its folder shows a sign of quantization, so that it must be understood.
    is_closed: bool
    #: The row of a scale that says nothing of weights.
    companion: Companion | None = None
    #: Why it is not understood; "" if it is.
    why: str = ""

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)


def described(catalogue: Catalogue, every: Sequence[DetectedTensor]) -> Iterator[Beside]:
    """Each tensor that is no part of codes."""
    closed, modules = _closed(catalogue, every), _modules(every)
    for path, tensor in catalogue.beside(every):
        row, folder = companions.companion(tensor.name), os.path.dirname(path)
        if folder not in closed or comfyui.is_marker(tensor.name) or companions.is_plain_cast(tensor):
            yield Beside(path, tensor, folder in closed)
        elif row is not None and _is_no_part(tensor, row, folder, modules):
            yield Beside(path, tensor, True, row)
        else:
            yield Beside(path, tensor, True, why=_unknown(tensor, row, folder, modules))


#: What decides about a tensor that is not understood.
_WAYS = "; say what becomes of it: --keep PATTERN (as it is), --drop PATTERN, or --as-weights PATTERN (plain numbers)"


def _is_no_part(tensor: Tensor, row: Companion, folder: str, modules: Mapping[tuple[str, str], int]) -> bool:
    """Whether a tensor is a scale that says nothing of weights: of the inputs of a layer with codes, or of a cache,
    which has one number. Others with such names may be weights."""
    if row.fate == "inputs":
        return (folder, tensor.name.replace("_quantizer._amax", "").rpartition(".")[0]) in modules
    return row.fate == "cache" and tensor.size == 1


def _unknown(tensor: Tensor, row: Companion | None, folder: str, modules: Mapping[tuple[str, str], int]) -> str:
    """Why a tensor beside codes is not understood; "" if it is."""
    name, dtype = tensor.name, tensor.dtype
    if row is not None:
        return (
            f"is {row.what}"
            if row.fate == "refused"
            else f"is named like {row.what}, and no codes are known to go with it"
        )
    if dtype is None or dtype.family in ("int", "bool") or not dtype.is_float:
        if companions.is_count(name):
            return ""
        beside = "may hold packed codes, and" if _holds_codes(tensor) else "beside codes"
        return f"of {tensor.kind} {beside} is not known here"
    if dtype.bits <= 8:
        return f"is {tensor.kind}, which holds codes, and scales that go with it are not known"
    inner = name.split(".")
    within = next(
        (module for end in range(1, len(inner)) if modules.get((folder, module := ".".join(inner[:end]))) == 0), None
    )
    if within is not None and name != f"{within}.bias":
        return f"is within {within!r}, which has codes, and is no part of them that is known here"
    return "" if companions.is_weight(name) else "lies beside codes, and is no weight whose name is known here"


def _modules(every: Iterable[DetectedTensor]) -> dict[tuple[str, str], int]:
    """The modules that have codes (0), and those around them: by how many levels."""
    found: dict[tuple[str, str], int] = {}
    for item in every:
        folder, module = os.path.dirname(item.paths[item.name]), item.base.removesuffix(".weight")
        for level in range(3):
            found[folder, module] = min(level, found.get((folder, module), level))
            module = module.rpartition(".")[0]
    return found


def _closed(catalogue: Catalogue, every: Sequence[DetectedTensor]) -> set[str]:
    """The folders that show a sign of quantization. Where gpucast's own entries of the metadata are the only one, they
    name all codes, and the rest are weights."""
    found = {os.path.dirname(item.paths[item.name]) for item in every if item.style != DEFAULT}
    for path, tensor in catalogue.beside(every):
        row = companions.companion(tensor.name)
        if (row is not None and row.is_sign) or (path.lower().endswith(".safetensors") and _holds_codes(tensor)):
            found.add(os.path.dirname(path))
    found |= {
        os.path.dirname(path)
        for path, file in catalogue.files.items()
        if any(_is_sign(*entry) for entry in file.metadata.items())
    }
    return found | {os.path.dirname(path) for path in catalogue.files if catalogue.declared(path).sections}


def _is_sign(key: str, text: str) -> bool:
    """Whether an entry of the metadata of a file says that it is quantized, by another than gpucast. torchao lists its
    tensors."""
    says = (
        "quant" in key.lower()
        and not key.startswith("gpucast")
        and text.lower() not in ("", "none", "null", "{}", "false")
    )
    return says or key == "tensor_names"


def _holds_codes(tensor: Tensor) -> bool:
    """Whether a tensor is of a type that weights have as codes alone."""
    dtype = tensor.dtype
    if not tensor.size or companions.is_count(tensor.name):
        return False
    if dtype is None:
        return tensor.kind not in safetensors.OTHER_BITS
    # Matrices of integers of 16 or 32 bits are words of several codes.
    is_code = dtype.bits <= 8 if dtype.is_float else dtype.family == "int" and dtype.bits < 64 and len(tensor.shape) > 1
    return is_code and not companions.is_plain_cast(tensor)


def _check_declared(
    catalogue: Catalogue, choice: Choice, at_work: Container[str], of_file: Mapping[str, FileScales]
) -> None:
    """FileError where what is said of quantization is not understood, or contradicts tensors that are cast."""
    for path, file in catalogue.files.items():
        declared = catalogue.declared(path)
        if not declared.sections:
            continue
        is_open = all(matches((*choice.as_weights, *choice.exclude), name) for name in file.tensors)
        if not is_open and os.path.dirname(path) in at_work and (why := declared.unknown()):
            raise FileError(f"{why}; --as-weights '*' takes all tensors for plain numbers")
        for tensor in of_file[path].detected:
            assert tensor.stored is not None
            if why := declared.problem(tensor.base, tensor.stored):
                raise FileError(f"{why}; leave {tensor.base!r} as it is with --exclude")


def _numbers(tensor: DetectedTensor) -> Tensor:
    """The tensor of numbers; a placeholder of the same name if it cannot be read."""
    if tensor.stored is not None:
        return Dequantized.of(tensor)
    return LoadedTensor(tensor.base, _FLOAT, (1, 1), tensor.kind, 0, np.zeros((1, 1), np.float32))


def read_as_numbers(tensors: Sequence[Tensor], scales: FileScales, file: TensorFile) -> list[Tensor]:
    """The tensors of a file, with codes and their scales replaced by one tensor of numbers."""
    if not scales.dropped and not scales.vectors:
        return list(tensors)
    numbers: dict[str, Tensor] = {one.name: Dequantized.of(one, file) for one in scales.detected}
    return [
        numbers.get(tensor.name, replace(tensor, shape=(1,)) if tensor.name in scales.vectors else tensor)
        for tensor in tensors
        if tensor.name in numbers or tensor.name not in scales.dropped
    ]
