# SPDX-License-Identifier: Apache-2.0
"""Adapts the graph of a model to initializers of a new type, so that it still computes with the old types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import Options, resolve
from gpucast.files.tensor import FileError, Linear

#: The domains of ONNX's own operators.
_DOMAINS = ("", "ai.onnx")
#: The first opset whose DequantizeLinear takes blocks and 4 bits.
_QDQ = 21


def inlined(model: Any, path: str) -> Any:
    """The model with the nodes of its own functions in place of calls to them. FileError where ONNX cannot do that."""
    from onnx import inliner

    try:
        whole = inliner.inline_local_functions(model)
    except Exception as error:
        # The type of the error depends on how ONNX was built.
        raise FileError(f"{path}: the functions of the model cannot be put in place of their calls: {error}") from None
    if whole.functions:
        raise FileError(
            f"{path}: function {whole.functions[0].name!r} follows another opset than the model, so that its constants "
            "cannot be told from weights; onnx.inliner.inline_local_functions(model, convert_version=True) removes it"
        )
    return whole


def check(model: Any, changes: Mapping[str, DType], path: str) -> None:
    """FileError if the model's opset cannot cast the new types (`changes`) back to the types that operators take."""
    opset = _opset(model)
    types = {proto.name: proto.data_type for proto in model.graph.initializer}
    inputs = {value.name for value in model.graph.input}
    for name, onnx_type in changes.items():
        if name in inputs:
            raise _is_input(name, path)
        if onnx_type.family == "string":
            raise FileError(f"{path}: initializer {name!r} cannot become text in a model")
        if opset is None or opset < 1:
            raise FileError(f"{path}: the model imports no operators of ONNX, so no Cast can be added to it")
        try:
            resolve(
                onnx_type,
                dtype(types[name]),
                Options(opset=opset, caller=f"{path}: initializer {name!r}: Cast of the model"),
            )
        except (TypeError, ValueError) as error:
            raise FileError(f"{error}; onnx.version_converter brings a model to a newer opset") from None


def _is_input(name: str, path: str) -> FileError:
    return FileError(
        f"{path}: initializer {name!r} is an input of the graph too: its type is what callers rely on, and cannot be "
        "changed; leave it out with --exclude"
    )


def retype(model: Any, before: Mapping[str, int]) -> None:
    """Adapt the graph to initializers whose types have changed; `before` has their old types as ONNX numbers.

    A Cast to the old type is inserted, and the users of the initializer get its result. If all users are Casts, they
    take the new type directly instead; a single Cast to exactly that type is removed.
    """
    from onnx import helper

    graph = model.graph
    protos = {proto.name: proto for proto in graph.initializer}
    kept = {None, *(value.name for value in graph.output)}
    uses = _uses(graph)
    taken = names_of(graph)
    casts, removed = [], []
    retyped = set()
    for name, number in before.items():
        proto, use = protos[name], uses.get(name, _Uses())
        if number == proto.data_type:
            continue
        if use.others:
            stored = free_name(f"{name}.{dtype(proto.data_type).name.lower()}", taken)
            casts.append(helper.make_node("Cast", [stored], [name], free_name(f"cast/{name}", taken), to=number))
            proto.name = stored
            continue
        retyped.add(name)
        if len(use.casts) == 1 and _cast_output(node := graph.node[use.casts[0]], proto.data_type) not in kept:
            removed.append(use.casts[0])
            proto.name = node.output[0]
    # By their places: protocol buffers would look for each.
    for place in sorted(removed, reverse=True):
        del graph.node[place]
    for place in reversed([at for at, value in enumerate(graph.value_info) if value.name in retyped]):
        del graph.value_info[place]
    for node in reversed(casts):
        graph.node.insert(0, node)
    model.ir_version = max(model.ir_version, helper.find_min_ir_version_for(list(model.opset_import), True))


def check_linear(
    model: Any, linear: Mapping[str, Linear], new: Set[str], types: Mapping[str, DType | None], path: str
) -> None:
    """FileError if the model's opset has no DequantizeLinear for the codes, or has other uses for the new names."""
    if not linear:
        return
    from onnx import defs

    opset = _opset(model) or 0
    if opset < _QDQ:
        raise FileError(
            f"{path}: the model has opset {opset}, and --scale needs {_QDQ} or later; onnx.version_converter brings a "
            "model to a newer opset"
        )
    inputs = {value.name for value in model.graph.input}
    schema = defs.get_schema("DequantizeLinear", min(opset, defs.onnx_opset_version()))
    accepted = next(one.allowed_type_strs for one in schema.type_constraints if one.type_param_str == "T1")
    clash = sorted(new & names_of(model.graph))
    if clash:
        raise FileError(f"{path}: the model has the name {clash[0]!r} already, which the codes or scales would get")
    for codes, one in linear.items():
        kind = types[codes]
        if one.of in inputs:
            raise _is_input(one.of, path)
        if kind is None or f"tensor({kind.name.lower()})" not in accepted:
            raise FileError(f"{path}: DequantizeLinear of opset {opset} does not take {kind and kind.name}")


def dequantize(model: Any, linear: Mapping[str, Linear]) -> None:
    """Take initializers out of the graph whose codes are in it, and compute them from these.

    DequantizeLinear gives FLOAT, the type of the scales; a Cast follows for weights of another type.
    """
    from onnx import TensorProto, helper

    graph, taken = model.graph, names_of(model.graph)
    types = {proto.name: proto.data_type for proto in graph.initializer}
    nodes = []
    for codes, one in linear.items():
        is_float = types[one.of] == TensorProto.FLOAT
        output = one.of if is_float else free_name(f"{one.of}_dequantized", taken)
        inputs = [name for name in (codes, one.scales, one.zero_points) if name is not None]
        attributes: dict[str, Any] = {} if one.axis is None else {"axis": one.axis, "block_size": one.block_size}
        name = free_name(f"dequantize/{one.of}", taken)
        nodes.append(helper.make_node("DequantizeLinear", inputs, [output], name, **attributes))
        if not is_float:
            name = free_name(f"cast/{one.of}", taken)
            nodes.append(helper.make_node("Cast", [output], [one.of], name, to=types[one.of]))
    replaced = {one.of for one in linear.values()}
    for place in reversed([at for at, proto in enumerate(graph.initializer) if proto.name in replaced]):
        del graph.initializer[place]
    for node in reversed(nodes):
        graph.node.insert(0, node)
    model.ir_version = max(model.ir_version, helper.find_min_ir_version_for(list(model.opset_import), True))


def known_as(graph: Any) -> dict[str, str]:
    """The value that each initializer, and each result of DequantizeLinear, stands for: after a conversion the result
    of the Casts that alone use it."""
    casts = {name: use.casts[0] for name, use in _uses(graph).items() if not use.others and len(use.casts) == 1}
    found = {}
    for name in [one.name for one in graph.initializer] + [node.output[0] for node in _dequantizing(graph)]:
        value = name
        while value in casts:
            value = graph.node[casts.pop(value)].output[0]
        # onnxruntime's quantizer adds this to the name of the weight.
        found[name] = value.removesuffix("_DequantizeLinear_Output")
    return found


def linear_in(graph: Any) -> dict[str, Linear]:
    """The values that DequantizeLinear computes from initializers alone, by the names of the codes."""
    held = {proto.name: tuple(proto.dims) for proto in graph.initializer}
    found = {}
    for node in _dequantizing(graph):
        codes, scales, *zero = node.input
        if all(name in held for name in node.input if name):
            given = {one.name: int(one.i) for one in node.attribute}
            axis = None if held[scales] in ((), (1,)) else given.get("axis", 1) % max(1, len(held[codes]))
            found[codes] = Linear(
                node.output[0], scales, zero[0] if any(zero) else None, axis, given.get("block_size", 0)
            )
    return found


def _dequantizing(graph: Any) -> Iterator[Any]:
    return (node for node in graph.node if node.op_type == "DequantizeLinear" and len(node.input) > 1 and node.output)


@dataclass
class _Uses:
    """The uses of a name: the places of Casts in the main graph, and the number of all others."""

    casts: list[int] = field(default_factory=list)
    others: int = 0


def _uses(graph: Any) -> dict[str, _Uses]:
    uses: dict[str, _Uses] = {}
    for place, node in enumerate(graph.node):
        # No checker has seen the model.
        is_cast = (node.op_type, len(node.input), len(node.output)) == ("Cast", 1, 1) and node.domain in _DOMAINS
        for name in node.input:
            use = uses.setdefault(name, _Uses())
            if is_cast:
                use.casts.append(place)
            else:
                use.others += 1
    inner = [graph for node in graph.node for graph in inner_graphs(node)]
    for name in [name for graph in inner for name in _names(graph)] + [value.name for value in graph.output]:
        uses.setdefault(name, _Uses()).others += 1
    return uses


def names_of(graph: Any) -> set[str]:
    """Every name in a graph and its subgraphs, of values and of nodes."""
    taken = set(_uses(graph)) | {name for node in _nodes(graph) for name in (node.name, *node.output)}
    for one in [graph, *(inner for node in _nodes(graph) for inner in inner_graphs(node))]:
        taken |= {value.name for value in (*one.input, *one.initializer)}
        taken |= {sparse.values.name for sparse in one.sparse_initializer}
    return taken


def _cast_output(node: Any, number: int) -> str | None:
    """The output of a Cast node, if it casts to the type `number` and has no other attributes; else None."""
    plain = [attribute.name for attribute in node.attribute] == ["to"]
    name: str = node.output[0]
    return name if plain and node.attribute[0].i == number else None


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph and of all its subgraphs."""
    for node in graph.node:
        yield node
        for inner in inner_graphs(node):
            yield from _nodes(inner)


def _names(graph: Any) -> Iterator[str]:
    """Every name that a subgraph may take from the graphs around it."""
    yield from (value.name for value in graph.output)
    yield from (name for node in _nodes(graph) for name in node.input)
    # Outputs of its own subgraphs.
    yield from (value.name for node in _nodes(graph) for inner in inner_graphs(node) for value in inner.output)


def inner_graphs(node: Any) -> Iterator[Any]:
    """The subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def free_name(name: str, taken: set[str]) -> str:
    """A name that is not in `taken`; it is added there."""
    free, count = name, 1
    while free in taken:
        count += 1
        free = f"{name}.{count}"
    taken.add(free)
    return free


def _opset(model: Any) -> int | None:
    """The opset of ONNX's own operators; None if the model imports none."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in _DOMAINS), None)
