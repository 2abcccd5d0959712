# SPDX-License-Identifier: Apache-2.0
"""Makes the plan of a conversion, before anything is written.

Files may be put together from tensors of others: a checkpoint in shards of some size, or merged into one file. Tensors
keep their order. Codes and scales that an entry of the metadata describes stay in one file with that entry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucast import files
from gpucast.convert.planning import model_config
from gpucast.convert.planning.plan import ConversionPlan, FilePlan, Identity
from gpucast.convert.planning.sources import SUFFIX, Index, Source, SourceFile, check_names, find, twice
from gpucast.convert.planning.tensor_plan import TensorPlan, TensorPlanner, into_model
from gpucast.convert.scales import comfyui, config_json, scale_styles, scaling
from gpucast.convert.scales.companions import Fate
from gpucast.convert.scales.detect import Catalogue
from gpucast.convert.scales.per_file import FileScales, scales_by_file
from gpucast.convert.scales.request import Request
from gpucast.convert.scales.scale_styles import ENTRY, STYLES, described_by
from gpucast.convert.scales.scaling import scaled_storage
from gpucast.files import FileError, Tensor, TensorFile, onnx_model
from gpucast.files.onnx_model import Model
from gpucast.quantization import RECIPES

#: The files that hold metadata.
_HOLDS = ".safetensors"
#: The tensors of a unit that is not divided, each with the plan of the file that it is read from.
_Unit = list[tuple[FilePlan, TensorPlan]]


def _merged(files: Sequence[FilePlan], name: str) -> FilePlan:
    """All tensors of `files` in one file. FileError where they cannot be in one."""
    return _gathered([pair for unit in _units(files) for pair in unit], name)


def _split(files: Sequence[FilePlan], limit: int, stem: str) -> list[FilePlan]:
    """All tensors of `files` in shards of at most `limit` bytes of tensors; a larger tensor has a shard for itself.

    One shard is called STEM.safetensors, several STEM-00001-of-00002.safetensors and so on.
    """
    shards: list[_Unit] = []
    room = 0
    for unit in _units(files):
        size = sum(tensor.bytes_out or 0 for _, tensor in unit)
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1] += unit
        room -= size
    if len(shards) == 1:
        return [_gathered(shards[0], f"{stem}.safetensors")]
    count = len(shards)
    return [_gathered(shard, f"{stem}-{i:05}-of-{count:05}.safetensors") for i, shard in enumerate(shards, 1)]


def _units(files: Sequence[FilePlan]) -> list[_Unit]:
    units: dict[str, _Unit] = {}
    places: dict[str, str] = {}
    for file in files:
        if comfyui.METADATA in file.metadata:
            raise FileError(
                f"{file.path}: its metadata tell of the scales of this file as it is; cast all its weights, or convert "
                "it alone"
            )
        for tensor in file.tensors or ():
            for name in tensor.names:
                if name in places:
                    raise FileError(f"{file.path}: tensor {name!r} is in {places[name]}, too")
                places[name] = file.path
            units.setdefault(described_by(tensor.name, file.metadata), []).append((file, tensor))
    return list(units.values())


def _gathered(pairs: _Unit, name: str) -> FilePlan:
    chosen: dict[str, list[TensorPlan]] = {}
    files = {file.path: file for file, _ in pairs}
    for file, tensor in pairs:
        chosen.setdefault(file.path, []).append(tensor)
    parts = tuple(dataclasses.replace(files[path], tensors=tuple(chosen[path])) for path in chosen)
    tensors = tuple(tensor for part in parts for tensor in part.tensors or ())
    identity = tuple(dict.fromkeys(known for part in parts for known in part.identity))
    return FilePlan(parts[0].path, name, tensors, identity, metadata=_metadata(parts), parts=parts)


def _metadata(parts: Sequence[FilePlan]) -> dict[str, str]:
    """The metadata that the sources agree on; entries about single tensors only if the tensor is here."""
    found: dict[str, set[str]] = {}
    for part in parts:
        here = {tensor.name for tensor in part.tensors or ()}
        for key, text in part.metadata.items():
            if not key.startswith(ENTRY) or key.removeprefix(ENTRY) in here:
                found.setdefault(key, set()).add(text)
    return {key: text for key, texts in found.items() for text in texts if len(texts) == 1}


@dataclass(frozen=True)
class Opened:
    """The tensors of a written file, in the order of its plan, each with its planner."""

    tensors: list[Tensor]
    planners: list[TensorPlanner]
    #: The model of an .onnx file.
    model: Model | None


@contextlib.contextmanager
def opened(file: FilePlan, request: Request, alone: bool) -> Iterator[Opened]:
    """The open sources of a file. FileError, OSError."""
    found = Opened([], [], None)
    with contextlib.ExitStack() as stack:
        for part in file.sources:
            source = stack.enter_context(TensorFile(part.path))
            # Of a checkpoint in files of one tensor each none is the only one.
            planner = TensorPlanner(source, request, alone and not file.parts, part.scales, part.groups)
            tensors = planner.tensors
            if file.parts:
                named = {tensor.name: tensor for tensor in tensors}
                tensors = [named[tensor.name] for tensor in part.tensors or ()]
            found.tensors.extend(tensors)
            found.planners.extend([planner] * len(tensors))
        yield dataclasses.replace(found, model=None if file.parts else source.model)


def make_plan(path: str, target: str, request: Request, overwrite: bool = True) -> ConversionPlan:
    """The plan for converting `path` to `target`. Nothing is written yet. With `overwrite` a file that is at `target`
    may be replaced; a folder never is.

    FileError for everything that cannot be done: malformed files, types that cannot be cast or stored, names that
    collide. OSError for files that cannot be read.
    """
    source = find(path, target, request.shard_size is not None)
    request = _with_style(request, source, target)
    _check_request(request, source, target)
    # Taken before the files are read, so that any later change is noticed.
    known = {item.path: Identity.of(item.path) for item in source.items}
    scales = file_scales(source, request)
    planned = [
        _file(item, source, target, request, scales.get(item.path, FileScales()), known) for item in source.items
    ]
    planned = _grouped(planned, request)
    tensors = [tensor for file in planned for tensor in file.tensors or ()]
    cast = any(tensor.dtype is not None for tensor in tensors)
    names = [tensor.name for tensor in tensors]
    names += [name for file in planned for name in sorted(file.scales.dropped)]
    reasons = dict.fromkeys(tensor.why for tensor in tensors if tensor.why)
    request.choice.check(names, cast, path, "; ".join(reasons))
    # The external data of a model, which it is read with, is rewritten with the model, not copied.
    models = [file for file in planned if file.tensors is not None and into_model(file.path)]
    external_data = {os.path.realpath(one.path) for file in models for one in file.identity[1:]}
    kept = tuple(
        file for file in planned if file.tensors is not None or os.path.realpath(file.path) not in external_data
    )
    check_names([name for file in kept for name in file.names], target)
    indexes = {name: _index(one, name, kept) for name, one in source.indexes}
    written: Sequence[FilePlan] = kept
    if source.merged:
        written = [_merged(kept, os.path.basename(target))]
    elif request.shard_size is not None:
        written, indexes = _in_shards(kept, source, request.shard_size)
    out = target.lower() if source.single else ""
    dropped = [key for file in planned if not (out or file.name.lower()).endswith(_HOLDS) for key in file.metadata]
    # The target has none on which the sources disagree.
    pairs = [(key, file) for file in written for part in file.parts for key in part.metadata]
    dropped += [key for key, file in pairs if key not in file.metadata and not key.startswith(ENTRY)]
    configs, stale = model_config.texts(kept, request, bool(indexes), path)
    written = [file for file in written if file.name not in configs and file.name not in stale]
    return ConversionPlan(
        path,
        target,
        request,
        tuple(written),
        source.single,
        (*indexes.items(), *configs.items()),
        tuple(sorted(set(dropped))),
        source.left_out,
        overwrite,
    )


def _with_style(request: Request, source: Source, target: str) -> Request:
    """The request with the style that a model, or a recipe beside a config.json, stands for."""
    scale = request.scale
    if request.asked_style is None and scale not in (None, "none") and into_model(target):
        request = dataclasses.replace(request, asked_style=scale_styles.MODELS)
    if (
        scale is not None
        and scale in RECIPES
        and any(os.path.basename(item.name) == config_json.NAME for item in source.items)
    ):
        request = dataclasses.replace(request, asked_style=_style_of(scale, source.path))
    return request


def _check_request(request: Request, source: Source, target: str) -> None:
    """FileError for options that are not for such files."""
    path = source.path
    if request.source_dtype is not None and (source.merged or not source.single):
        raise FileError(f"{path}: --from is for one file; convert the files one by one")
    if request.style != scale_styles.DEFAULT and request.scale in (None, "none"):
        raise FileError(f"{path}: --style {request.style} is a way to store scales; give --scale")
    if source.merged and STYLES[request.style].is_configured:
        raise FileError(f"{target}: --style {request.style} needs a config.json beside the weights; name a folder")
    if request.choice.drop and any(into_model(item.path) for item in source.items):
        raise FileError(
            f"{path}: --drop is for tensors of checkpoints; the graph of a model needs all its initializers"
        )


def _style_of(recipe: str, path: str) -> str:
    """The style by which loaders that read a config.json get the numbers of a recipe. FileError where none does."""
    library = RECIPES[recipe].library
    found = {
        name: scale_styles.for_recipe(one.format, library) for name, one in RECIPES.items() if one.library == library
    }
    style = found[recipe]
    if style is None:
        known = ", ".join(name for name, style in found.items() if style is not None)
        raise FileError(
            f"{path}: has a {config_json.NAME}, and its loaders know no style that holds {recipe}; of {library} they "
            f"take {known}"
        )
    return style


def _in_shards(planned: Sequence[FilePlan], source: Source, limit: int) -> tuple[list[FilePlan], dict[str, str]]:
    """The files with new shard sizes, and the indexes of checkpoints in several files.

    A .safetensors file without an index is a checkpoint of its own.
    """
    result = list(planned)
    indexes: dict[str, str] = {}
    held = {name: _shards(one, name, planned) for name, one in source.indexes}
    known = {file.name for shards in held.values() for file in shards.values()}
    alone = [file for file in planned if file.name.endswith(".safetensors") and file.name not in known]
    checkpoints = [(name, one, list(held[name].values())) for name, one in source.indexes]
    checkpoints += [(file.name + SUFFIX, Index(file.path), [file]) for file in alone]
    for name, one, files_of_it in checkpoints:
        stem = name.removesuffix(SUFFIX).removesuffix(".safetensors")
        shards = _split(files_of_it, limit, stem)
        place = result.index(files_of_it[0])
        result[place:place] = shards
        result = [file for file in result if file not in files_of_it]
        if len(shards) > 1:
            tensors = [(tensor, os.path.basename(shard.name)) for shard in shards for tensor in shard.tensors or ()]
            weight_map = {written: shard for tensor, shard in tensors for written in tensor.names}
            total = sum(tensor.bytes_out or 0 for tensor, _ in tensors)
            indexes[name] = one.text(dict(sorted(weight_map.items())), total)
    check_names([name for file in result for name in file.names], source.path)
    return result, indexes


def _file(
    item: SourceFile, source: Source, target: str, request: Request, scales: FileScales, known: Mapping[str, Identity]
) -> FilePlan:
    if not item.tensors:
        return FilePlan(item.path, item.name, None, (known[item.path],))
    out = target if source.single else item.name
    with TensorFile(item.path) as file:
        planner = TensorPlanner(file, request, source.single and not source.merged, scales)
        pairs = [planner.plan(tensor, out) for tensor in planner.tensors]
        plans = tuple(plan for plan, _ in pairs)
        specs = [spec for _, written in pairs for spec in written]
        if repeated := twice([spec.name for spec in specs]):
            raise FileError(f"{out}: two tensors would have the name {repeated[1]!r}")
        external = None
        if file.model is not None and out.lower().endswith(files.MODEL):
            external = item.name + onnx_model.DATA if onnx_model.uses_external(file.model, specs) else None
        # Raises at once if the target's format cannot hold these tensors.
        metadata = planner.metadata()
        files.check(out, specs, metadata, file.model)
        data = () if file.model is None else tuple(sorted(file.model.locations))
        with_scales = [path for detected in scales.detected for path in detected.paths.values()]
        read = dict.fromkeys([item.path, *data, *with_scales])
        identity = tuple(known.get(path) or Identity.of(path) for path in read)
        return FilePlan(item.path, item.name, plans, identity, external, scales, metadata=metadata)


def _grouped(planned: Sequence[FilePlan], request: Request) -> list[FilePlan]:
    """The plans, with the weights that share a global scale. The weights of a model are those in one folder."""
    scale = request.scale
    has_global_scale = RECIPES[scale].format.global_scale if scale and scale in RECIPES else scale == "nvfp4"
    if not STYLES[request.style].is_configured or not has_global_scale:
        return list(planned)
    result = list(planned)
    for folder in dict.fromkeys(os.path.dirname(file.name) for file in planned):
        places = {
            tensor.name: index
            for index, file in enumerate(planned)
            if os.path.dirname(file.name) == folder
            for tensor in file.tensors or ()
            if len(tensor.names) > 1
        }
        for names in scaling.groups(places):
            of_group = {index: planned[index] for name in names for index in [places[name]]}
            scales = {file.path: file.scales for file in of_group.values()}
            group = scaling.FusedGroup({name: planned[places[name]].path for name in names}, scales)
            read = dict.fromkeys(known for file in of_group.values() for known in file.identity)
            for index in of_group:
                file = result[index]
                mine = {name: group for name in names if places[name] == index}
                identity = (*file.identity, *(known for known in read if known not in file.identity))
                result[index] = dataclasses.replace(file, groups={**file.groups, **mine}, identity=identity)
    return result


def file_scales(source: Source, request: Request) -> dict[str, FileScales]:
    """For each file: the codes and scales that are read as numbers, and those that are kept as they are.

    FileError if tensors that would be cast cannot be read as numbers.
    """
    catalogue = Catalogue()
    for item in source.items:
        if item.tensors and not item.path.lower().endswith(files.MODEL):
            with TensorFile(item.path) as file:
                catalogue.add(item.path, file)

    def is_cast(tensor: Tensor) -> bool:
        dtype = request.choice.target(tensor)
        return dtype is not None and not isinstance(scaled_storage(tensor, dtype, request, source.path), str)

    carried: set[Fate] = {"cache"} if request.style == "compressed-tensors" else set()
    format = None if request.scale is None else scaling.format_of(request.scale, request.choice.to)
    carried |= {"inputs"} if scale_styles.takes_scales_of_inputs(request.style, format) else set()
    return scales_by_file(catalogue, request.choice, is_cast, carried)


def _shards(one: Index, name: str, planned: Sequence[FilePlan]) -> dict[str, FilePlan]:
    """The plans of the files of an index, by the names that they have in it."""
    folder = os.path.dirname(name)
    files = {file.name: file for file in planned}
    result = {}
    for shard in one.files:
        shard_name = os.path.normpath(f"{folder}/{shard}" if folder else shard).replace(os.sep, "/")
        if shard_name not in files:
            raise FileError(f"{one.path}: weight_map names {shard!r}, a hidden file, which is left out; rename it")
        result[shard] = files[shard_name]
    return result


def _index(one: Index, name: str, planned: Sequence[FilePlan]) -> str:
    """The text of the index of the written files; `index` is the index of the source."""
    weight_map: dict[str, str] = {}
    held: dict[str, list[str]] = {}
    for tensor_name, shard in one.weight_map.items():
        held.setdefault(shard, []).append(tensor_name)
    total = 0
    for shard, file in _shards(one, name, planned).items():
        # From names in the source to names of planned tensors; they differ for codes that are read as numbers.
        planned_name = {tensor.name: tensor.name for tensor in file.tensors or ()}
        planned_name |= dict.fromkeys(file.scales.dropped, "")
        planned_name |= {item.name: item.stored.name for item in file.scales.detected if item.stored is not None}
        if missing := next((tensor_name for tensor_name in held[shard] if tensor_name not in planned_name), ""):
            raise FileError(f"{one.path}: weight_map places {missing!r} in {shard!r}, which has no such tensor")
        kept = {planned_name[tensor_name] for tensor_name in held[shard]}
        for tensor in file.tensors or ():
            for written in tensor.names if tensor.name in kept else ():
                if weight_map.setdefault(written, shard) != shard:
                    raise FileError(
                        f"{one.path}: two tensors would have the name {written!r}, in {weight_map[written]!r} and "
                        f"{shard!r}"
                    )
            total += (tensor.bytes_out or 0) if tensor.name in kept else 0
    return one.text(dict(sorted(weight_map.items())), total)
