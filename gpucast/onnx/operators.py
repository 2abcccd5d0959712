# SPDX-License-Identifier: Apache-2.0
"""Cast and CastLike for onnx's reference evaluator, and constant folding of the casts in a model. Import them from
`gpucast.onnx.backend`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from gpucast.casting import cast as casting
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CAST_VERSIONS, CASTLIKE_VERSIONS, ROUND_MODE_SINCE, SATURATE_SINCE, newest_version
from gpucast.files.onnx_graph import inner_graphs

NDArray = npt.NDArray[Any]
#: The domain names of ONNX's own operators.
_DOMAINS = ("", "ai.onnx")
#: The first IR version in which an initializer need not be an input too.
_FREE_INITIALIZERS = 4


class _Operator(OpRun):
    """The common part of Cast and CastLike: the attributes of a node, and the meaning of their values in ONNX."""

    op_domain = ""
    # With a schema OpRun would add the newest version's defaults to every node. Without one `_run` gets exactly the
    # attributes that the node has, so that it can check which are present.
    op_schema = None

    #: Where to cast: None for the host, else the argument `device` of `gpucast.cast`.
    device: ClassVar[str | None] = None
    versions: ClassVar[tuple[int, ...]]
    #: By attribute, the first version that has it.
    attributes: ClassVar[Mapping[str, int]]

    def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any], schema: Any = None) -> None:
        name = type(self).__name__
        opset = run_params["opsets"][onnx_node.domain]
        version = newest_version(opset, self.versions, name)
        present = [attribute.name for attribute in onnx_node.attribute]
        for attribute in present:
            since = self.attributes.get(attribute)
            if since is None:
                raise ValueError(
                    f"{name}: attribute {attribute!r} is unknown; expected one of {', '.join(self.attributes)}"
                )
            if since > version:
                raise ValueError(
                    f"{name}: attribute {attribute!r} needs opset {since}; opset={opset} has version {version}"
                )
        if "to" in self.attributes and "to" not in present:
            raise ValueError(f"{name}: attribute 'to' is required; the node has {present or 'none'}")
        super().__init__(onnx_node, run_params, schema)
        self._opset = opset

    def run(self, *args: Any, **context: Any) -> tuple[Any, ...]:
        try:
            return super().run(*args, **context)  # type: ignore[no-any-return,no-untyped-call]
        except TypeError as error:
            # OpRun replaces the reason by "Issues with types ...".
            if isinstance(error.__cause__, TypeError):
                raise error.__cause__ from None
            raise

    def _keywords(self, saturate: Any, round_mode: Any, *kinds: DType) -> dict[str, Any]:
        """The keywords of `gpucast.cast` for the node's attributes; None means absent."""
        keywords: dict[str, Any] = {"opset": self._opset}
        if saturate is not None:
            # ONNX has no boolean attributes: 0 is false, any other integer true.
            keywords["saturate"] = self._checked("saturate", saturate, int) != 0
        if round_mode is not None:
            keywords["round_mode"] = self._checked("round_mode", round_mode, str)
        if all(kind.family != "string" for kind in kinds):
            # Text stays on the host.
            keywords["device"] = self.device
        return keywords

    def _checked(self, attribute: str, value: Any, kind: type) -> Any:
        if not isinstance(value, kind):
            expected = "a string" if kind is str else "an integer"
            raise ValueError(
                f"{type(self).__name__}: attribute {attribute}={value!r} must be {expected} in opset {self._opset}"
            )
        return value


class Cast(_Operator):
    """The operator Cast, versions 1, 6, 9, 13, 19, 21, 23, 24, 25 and 28."""

    versions = CAST_VERSIONS
    attributes: ClassVar[Mapping[str, int]] = {"to": 1, "saturate": SATURATE_SINCE, "round_mode": ROUND_MODE_SINCE}

    def _run(self, x: Any, to: Any, saturate: Any = None, round_mode: Any = None) -> tuple[NDArray]:
        # Version 1 has the type's name as text, later versions its number.
        dst = dtype(self._checked("to", to, str if self._opset < CAST_VERSIONS[1] else int), caller="Cast: to=")
        keywords = self._keywords(saturate, round_mode, _dtype_of(x, "Cast"), dst)
        return (on_host(casting.cast(x, dst, **keywords)),)


class CastLike(_Operator):
    """The operator CastLike, versions 15, 19, 21, 23, 24 and 25; only the type of `like` matters."""

    versions = CASTLIKE_VERSIONS
    attributes: ClassVar[Mapping[str, int]] = {"saturate": SATURATE_SINCE, "round_mode": ROUND_MODE_SINCE}

    def _run(self, x: Any, like: Any, saturate: Any = None, round_mode: Any = None) -> tuple[NDArray]:
        keywords = self._keywords(saturate, round_mode, _dtype_of(x, "CastLike"), _dtype_of(like, "CastLike"))
        return (on_host(casting.cast_like(x, like, **keywords)),)


class Evaluator(ReferenceEvaluator):
    """onnx's evaluator with our operators. It evaluates subgraphs and functions with instances of its own class."""

    operators: ClassVar[tuple[type[Cast] | type[CastLike], ...]] = (Cast, CastLike)

    def __init__(self, proto: Any, *, new_ops: Sequence[type[OpRun]] | None = None, **rest: Any) -> None:
        super().__init__(proto, new_ops=[*self.operators, *(new_ops or ())], **rest)


def graph_of(node: onnx.NodeProto, values: Iterable[str]) -> onnx.GraphProto:
    """A graph of one node, whose inputs have values of these names."""
    inputs, outputs = ([onnx.ValueInfoProto(name=name) for name in names if name] for names in (values, node.output))
    return helper.make_graph([node], "node", inputs, outputs)


def _dtype_of(x: Any, caller: str) -> DType:
    if not isinstance(x, (np.ndarray, np.generic)):
        raise TypeError(f"{caller}: the input is a {type(x).__name__}; expected a tensor (numpy.ndarray)")
    return dtype(x.dtype, caller=f"{caller}: input of type ")


def on_host(x: Any) -> NDArray:
    """A result as a NumPy array."""
    return x if isinstance(x, np.ndarray) else x.get()


def fold_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model in which every Cast and CastLike of a constant is replaced by its result.

    Constants are outputs of Constant nodes, results of folded casts, and initializers, except those that are inputs
    too, because a caller may replace them. Of CastLike's second input only the type must be known, from a constant or
    from the model's declarations. Results have the name of the cast's output and follow the opset that the model
    imports. They become initializers of the graph or subgraph that holds the cast; in functions, and in models of an IR
    version below 4, whose initializers must be inputs, they become Constant nodes. Constants that only folded casts
    have used are removed; all other unused initializers stay.

    Casts that fail stay as they are (such as of a text that is no number), because they may never run. So do casts of
    tensors in external files (``onnx.load`` loads them) and of sparse tensors. ValueError for a model with
    training_info, whose initializers are not constant, and for an opset that gpucast does not know.
    """
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(f"fold_casts: model is a {type(model).__name__}; expected an onnx.ModelProto")
    if model.training_info:
        raise ValueError("fold_casts: the model has training_info: its initializers change, and cannot be folded")
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    opset = _opset(folded.opset_import)
    if opset is not None:
        _Folding(opset, as_nodes=folded.ir_version < _FREE_INITIALIZERS).fold(folded.graph, {}, {})
    for function in folded.functions:
        opset = _opset(function.opset_import)
        if opset is not None:
            _Folding(opset, as_nodes=True).fold(function, {}, {})
    return folded


def _opset(imports: Any) -> int | None:
    """The opset of ONNX's own operators; None if the model does not import them."""
    for entry in imports:
        if entry.domain in _DOMAINS:
            newest_version(entry.version, caller="fold_casts")
            return int(entry.version)
    return None


class _Folding:
    """Folds one graph or function, and all graphs within it."""

    def __init__(self, opset: int, as_nodes: bool) -> None:
        self._opset = opset
        #: Whether results become Constant nodes.
        self._as_nodes = as_nodes

    def fold(self, graph: Any, constants: dict[str, Any], types: dict[str, int]) -> set[str]:
        """Fold a graph or function; `constants` and `types` come from the graphs around it.

        A constant is a TensorProto, a Constant node, or an array. Returns the outer names that folded casts used.
        """
        constants, types = constants.copy(), types.copy()
        own = _declare(graph, constants, types) if isinstance(graph, onnx.GraphProto) else set()
        spent: set[str] = set()
        done = []
        for index, node in enumerate(graph.node):
            for inner in inner_graphs(node):
                spent |= self.fold(inner, constants, types)
            value = self._constant(node, constants, types)
            if value is None:
                continue
            (name,) = node.output
            constants[name] = value
            own.add(name)
            if value is node:
                continue
            spent.update(node.input)
            tensor = numpy_helper.from_array(value, name)
            types[name] = tensor.data_type
            if self._as_nodes:
                node.CopyFrom(helper.make_node("Constant", [], [name], node.name, domain=node.domain, value=tensor))
            else:
                graph.initializer.append(tensor)
                done.append(index)
        for index in reversed(done):
            del graph.node[index]
        _remove(graph, (spent & own).difference(_used(graph)))
        return spent - own

    def _constant(self, node: onnx.NodeProto, constants: dict[str, Any], types: dict[str, int]) -> Any:
        """A Constant node itself, or the result of a cast of a constant; None for other nodes and failing casts."""
        if node.domain not in _DOMAINS or any(attribute.ref_attr_name for attribute in node.attribute):
            return None
        if node.op_type == "Constant":
            return node
        if node.op_type not in ("Cast", "CastLike") or not node.input or node.input[0] not in constants:
            return None
        try:
            values = {}
            for name in node.input[1:]:
                # Only its type matters.
                known = types.get(name)
                values[name] = np.zeros((), _dtype(known)) if known else self._value(constants, name)
            values[node.input[0]] = self._value(constants, node.input[0])
            return self._run(node, values)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def _value(self, constants: dict[str, Any], name: str) -> Any:
        found = constants[name]
        if isinstance(found, onnx.TensorProto):
            return numpy_helper.to_array(found)
        return self._run(found, {}) if isinstance(found, onnx.NodeProto) else found

    def _run(self, node: onnx.NodeProto, values: dict[str, Any]) -> Any:
        """The output of one node."""
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        plain.domain = ""
        (result,) = Evaluator(graph_of(plain, values), opsets={"": self._opset}).run(None, values)
        return result


def _declare(graph: onnx.GraphProto, constants: dict[str, Any], types: dict[str, int]) -> set[str]:
    """Add a graph's constants and declared types; returns the names of its initializers that are constants."""
    for value in (*graph.value_info, *graph.output, *graph.input):
        types[value.name] = value.type.tensor_type.elem_type
    inputs = {value.name for value in graph.input}
    for name in inputs:
        constants.pop(name, None)
    own = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.name not in inputs and tensor.data_location != onnx.TensorProto.EXTERNAL
    }
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    constants.update(own)
    return set(own)


def _dtype(number: int) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(number))


def _used(graph: Any) -> Iterator[str]:
    """Every name that a graph or function, or a graph within it, reads or outputs."""
    if isinstance(graph, onnx.GraphProto):
        yield from (value.name for value in graph.output)
        for annotation in graph.quantization_annotation:
            yield annotation.tensor_name
            yield from (entry.value for entry in annotation.quant_parameter_tensor_names)
    else:
        yield from graph.output
    for node in graph.node:
        yield from node.input
        for inner in inner_graphs(node):
            yield from _used(inner)


def _remove(graph: Any, names: set[str]) -> None:
    """Remove initializers and Constant nodes from a graph or function, with their declarations."""
    for entries in ([graph.initializer] if isinstance(graph, onnx.GraphProto) else []) + [graph.value_info]:
        for index in reversed(range(len(entries))):
            if entries[index].name in names:
                del entries[index]
    for index in reversed(range(len(graph.node))):
        if names.issuperset(graph.node[index].output) and graph.node[index].op_type == "Constant":
            del graph.node[index]
