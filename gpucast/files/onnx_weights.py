# SPDX-License-Identifier: Apache-2.0
"""Which constants of a model are weights: those that known operators use as weights, and nothing else. Frequencies,
masks, tables of positions, shapes, scales, ranges and epsilons are none, and neither are the codes and scales of
DequantizeLinear, which stay whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucast.files import onnx_graph
from gpucast.files.onnx_graph import inner_graphs
from gpucast.files.tensor import NDArray

#: Operators of ONNX, and their inputs that are weights whatever their shapes.
_ONNX: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Gemm", "Conv", "ConvTranspose"), (1, 2)),
    "DeformConv": (1, 3),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2, 3)),
    **dict.fromkeys(
        ("LayerNormalization", "GroupNormalization", "InstanceNormalization", "BatchNormalization"), (1, 2)
    ),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization", "PRelu"), (1,)),
}
#: Those of onnxruntime, com.microsoft. Its Attention takes weights, ONNX's takes queries, keys, values and a mask.
_MICROSOFT: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("FusedGemm", "FusedConv", "NhwcConv", "Attention", "GroupNorm"), (1, 2)),
    **dict.fromkeys(("BiasGelu", "FastGelu", "SimplifiedLayerNormalization"), (1,)),
    "SkipLayerNormalization": (2, 3, 4),
    "SkipSimplifiedLayerNormalization": (2, 3),
    "EmbedLayerNormalization": (2, 3, 4, 5, 6),
    "MultiHeadAttention": (3,),
    "MoE": (2, 3, 4, 5, 6, 7),
}
#: The second factor is a matrix of a layer. The first one is a mask, a filter, or frequencies (the inv_freq of rotary
#: positions), and so is an outer product, which adds nothing up.
_PRODUCTS = ("MatMul", "FusedMatMul")
#: Norms without weights, whose results weights may follow.
_NORMS = ("MeanVarianceNormalization", "LpNormalization")
#: What enters these is what its result enters.
_PASSED = (
    *("Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Slice", "Split", "Flatten"),
    "Dropout",
)
_CODES = (
    *("DequantizeLinear", "QuantizeLinear", "MatMulNBits", "MatMulBnb4", "DynamicQuantizeMatMul", "QLinearMatMul"),
    *("QLinearConv", "QAttention", "QGemm", "GatherBlockQuantized", "QMoE", "QLinearAdd"),
)
#: Rows that these choose are boxes or candidates, not embeddings.
_CHOICES = ("TopK", "NonZero", "NonMaxSuppression")
_DOMAINS = ("", "ai.onnx", "com.microsoft")
#: ONNX's numbers of the floating types of 16 bits and more.
_FLOATS = (1, 10, 11, 16)
#: Steps back from a divisor to the root in it.
_STEPS = 4
#: Rows of a table that tell whether it is one of positions; the first two may be those of padding.
_ROWS = slice(2, 6)
#: How a user casts what may be a weight all the same.
_WAY = "; --as-weights casts it"

#: Reads the first elements of an initializer.
First = Callable[[str, int], NDArray]


@dataclass(frozen=True, eq=False)
class _Node:
    """A node, with the names of values as no other graph has them."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: Any

    def attribute(self, name: str) -> Any:
        return next((one for one in self.proto.attribute if one.name == name), None)


class Graph:
    """The graph of a model, whose initializers are weights or not."""

    def __init__(self, graph: Any, first: First) -> None:
        self._first = first
        self._uses: dict[str, list[tuple[_Node, int]]] = {}
        self._makers: dict[str, _Node] = {}
        self._sizes = {proto.name: tuple(proto.dims) for proto in graph.initializer}
        #: Values that no input changes, or only by its shape.
        self._fixed: set[str] = set(self._sizes) - {value.name for value in graph.input}
        self._outputs: set[str] = set()
        self._graphs = 0
        self._enter(graph, {})

    def weights(self) -> dict[str, str]:
        """For each initializer of the main graph why it is no weight; "" if it is."""
        return {name: self._why_not(name, shape, name, set()) for name, shape in self._sizes.items()}

    def _enter(self, graph: Any, around: dict[str, str]) -> None:
        """Take the nodes of a graph. `around`: the names of what the graphs around it have."""
        here, number = dict(around), self._graphs
        self._graphs += 1

        def named(name: str) -> str:
            # Graphs beside each other may have the same names.
            return here.setdefault(name, f"{name}\0{number}" if number else name) if name else ""

        for value in (*graph.input, *graph.initializer):
            here[value.name] = f"{value.name}\0{number}" if number else value.name
        self._fixed.update(here[proto.name] for proto in graph.initializer if number)
        for proto in graph.node:
            for name in proto.output if number else ():
                here[name] = f"{name}\0{number}" if name else ""
            inputs, outputs = tuple(map(named, proto.input)), tuple(map(named, proto.output))
            kind = proto.op_type if proto.domain in _DOMAINS else f"{proto.domain}.{proto.op_type}"
            node = _Node(kind, inputs, outputs, proto)
            for place, name in enumerate(node.inputs):
                self._uses.setdefault(name, []).append((node, place))
            self._makers |= dict.fromkeys(outputs, node)
            # What subgraphs take from outside is no input of their node.
            subgraphs = list(inner_graphs(proto))
            is_fixed = any(inputs) and all(name in self._fixed for name in inputs if name) and not subgraphs
            if is_fixed or node.kind in ("Shape", "Size", "Constant"):
                self._fixed.update(outputs)
            for inner in subgraphs:
                self._enter(inner, here)
        self._outputs |= {named(value.name) for value in graph.output}

    # ---- forward: what a constant is used for ----

    def _why_not(self, name: str, shape: Sequence[int], origin: str, seen: set[str]) -> str:
        """Why a value of that shape, or a result of it, is no weight; `origin`: where it comes from."""
        if name in self._outputs:
            return "it is an output of a graph"
        seen.add(name)
        uses = self._uses.get(name, [])
        reasons = (self._of_use(node, place, shape, origin, seen) for node, place in uses)
        return "nothing uses it" if not uses else next(filter(None, reasons), "")

    def _of_use(self, node: _Node, place: int, shape: Sequence[int], origin: str, seen: set[str]) -> str:
        if node.kind in _PASSED and place == 0:
            made = [name for name in node.outputs if name and name not in seen]
            passed = _passed(node, shape)
            return next(filter(None, (self._why_not(name, passed, origin, seen) for name in made)), "")
        if node.kind in _CODES:
            return f"{node.kind} takes codes and scales, which stay whole"
        if all(name in self._fixed for name in node.inputs if name):
            return f"what {node.kind} makes of it depends on no input{_WAY if any(size > 1 for size in shape) else ''}"
        if why := self._of_operator(node, place, shape, origin):
            return why
        is_of_angles = any(self._are_angles(name, set()) for name in node.outputs)
        return f"{node.kind} makes angles of it{_WAY}" if is_of_angles else ""

    def _of_operator(self, node: _Node, place: int, shape: Sequence[int], origin: str) -> str:
        kind, wide = node.kind, [size for size in shape if size > 1]
        if place in _weights_of(node):
            return ""
        if kind in _PRODUCTS:
            if place:
                is_weight = len(shape) > 1 and shape[-2] > 1
                return "" if is_weight else f"{kind} multiplies by it as by a vector{_WAY}"
            return f"{kind} has it on the left, as a mask or frequencies{_WAY}"
        if kind == "Einsum":
            return "" if len(wide) > 1 and _adds_up(node, place, shape) else f"Einsum adds nothing up over it{_WAY}"
        if kind == "Gather" and place == 0:
            return self._of_table(node, shape, origin)
        if kind in ("Add", "Mul"):
            other = node.inputs[1 - place]
            if len(wide) == 1 and self._is_of_layer(other):
                return ""
            return (
                f"{kind} takes it, and it is no bias or factor of a layer{_WAY}" if wide else f"{kind} takes a number"
            )
        return f"{kind} takes no weight there{_WAY if wide else ''}"

    def _of_table(self, node: _Node, shape: Sequence[int], origin: str) -> str:
        axis = node.attribute("axis")
        if len(shape) != 2 or (axis is not None and axis.i) or node.inputs[1] in self._fixed:
            return f"Gather takes no rows of a table of embeddings from it{_WAY}"
        maker = self._maker(node.inputs[1])
        if maker is not None and maker.kind in _CHOICES:
            return f"Gather takes those rows of it that {maker.kind} chooses{_WAY}"
        return f"it is a table of positions{_WAY}" if _is_of_positions(self._first, origin, shape) else ""

    def _are_angles(self, name: str, seen: set[str]) -> bool:
        """Whether a value becomes the argument of a sine or cosine, multiplied by numbers at most."""
        seen.add(name)
        for node, _ in self._uses.get(name, ()):
            if node.kind in ("Sin", "Cos"):
                return True
            others = [one for one in node.inputs if one and one != name]
            scaled = node.kind in ("Mul", "Div", "Neg") and all(one in self._fixed for one in others)
            scaled &= all(self._is_number(one) for one in others)
            if node.kind in (*_PASSED, "Concat") or scaled:
                made = [one for one in node.outputs if one and one not in seen]
                if any(self._are_angles(one, seen) for one in made):
                    return True
        return False

    # ---- backward: what a bias or a factor is beside ----

    def _is_of_layer(self, name: str) -> bool:
        """Whether a value is the result of a layer with weights, or of a norm; perhaps with vectors added, and
        multiplied by them."""
        node = self._maker(name)
        for _ in range(len(self._makers)):
            if node is None:
                return False
            if node.kind in _NORMS or (node.kind in ("Div", "Mul") and any(map(self._is_of_root, node.inputs))):
                return True
            places = _weights_of(node) or ((1,) if node.kind in _PRODUCTS else (0, 1) if node.kind == "Einsum" else ())
            if places:
                return any(name in self._fixed for place, name in enumerate(node.inputs) if name and place in places)
            if node.kind not in ("Add", "Mul"):
                return False
            beside = [one for one in node.inputs if one not in self._fixed]
            if len(beside) != 1:
                return False
            node = self._maker(beside[0])
        return False

    def _is_of_root(self, name: str) -> bool:
        """Whether a value is a root that depends on data, or one divided by it: the size of what a norm divides."""
        for _ in range(_STEPS):
            node = self._maker(name)
            if node is None or name in self._fixed:
                return False
            if node.kind in ("Sqrt", "ReduceL2", "Pow"):
                return True
            if node.kind not in ("Reciprocal", "Div", "Add", "Clip", "Max"):
                return False
            name = next((one for one in node.inputs if one and one not in self._fixed), "")
        return False

    def _maker(self, name: str) -> _Node | None:
        """The node whose result a value is, perhaps in another shape or type."""
        node = self._makers.get(name)
        for _ in range(len(self._makers)):
            if node is None or node.kind not in _PASSED:
                return node
            node = self._makers.get(node.inputs[0]) if node.inputs else None
        return None

    def _is_number(self, name: str) -> bool:
        """Whether a value that depends on no input is one number, as far as is known."""
        if name in self._sizes:
            return int(np.prod(self._sizes[name])) == 1
        maker = self._makers.get(name)
        held = None if maker is None else constant(maker.proto)
        return held is None or int(np.prod(held.dims)) == 1


def _weights_of(node: _Node) -> tuple[int, ...]:
    table = _MICROSOFT if node.proto.domain == "com.microsoft" else _ONNX
    return table.get(node.kind, ())


def _passed(node: _Node, shape: Sequence[int]) -> Sequence[int]:
    """The shape of what a node passes on; where that is not known, its dimensions of more than one element."""
    if node.kind in ("Identity", "Cast", "Dropout"):
        return shape
    if node.kind == "Transpose":
        order = node.attribute("perm")
        places = list(range(len(shape)))[::-1] if order is None else list(order.ints)
        return [shape[place] for place in places] if sorted(places) == list(range(len(shape))) else shape
    return [size for size in shape if size > 1]


def _adds_up(node: _Node, place: int, shape: Sequence[int]) -> bool:
    """Whether an Einsum adds up over a dimension of an input."""
    given = node.attribute("equation")
    left, arrow, right = ("" if given is None else given.s.decode(errors="replace")).replace(" ", "").partition("->")
    terms = left.split(",")
    labels = terms[place] if place < len(terms) else ""
    known = arrow and len(labels) == len(shape) and labels.isalpha()
    return bool(known) and any(size > 1 and label not in right for label, size in zip(labels, shape, strict=True))


def _is_of_positions(first: First, name: str, shape: Sequence[int]) -> bool:
    """Whether the columns of a table are waves, or go up evenly: by their rows the sum of neighbours is then each row
    times one factor."""
    rows, columns = shape
    if rows < _ROWS.stop or not columns:
        return False
    a, b, c, d = first(name, _ROWS.stop * columns).reshape(-1, columns)[_ROWS].astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.maximum.reduce([np.abs(one) for one in (a, b, c, d)]) ** 2
        return bool((np.abs((a + c) * c - (b + d) * b) <= size / 64).mean() > 0.9 and size.any())


# ---- constants that are no initializers of the main graph ----


def constant(proto: Any) -> Any:
    """The tensor of a Constant; None for other nodes, and for those of numbers and lists."""
    if proto.op_type != "Constant" or len(proto.output) != 1:
        return None
    return next((one.t for one in proto.attribute if one.name == "value" and one.HasField("t")), None)


def lift_constants(model: Any) -> None:
    """Make initializers of the main graph of all floating constants of several numbers that Constants and subgraphs
    hold, so that they are cast, or named."""
    # Before this version of the format an initializer had to be an input, too.
    if model.ir_version < 4:
        return
    main, every = model.graph, list(_graphs(model.graph))
    defined = Counter(value.name for graph in every for value in (*graph.input, *graph.initializer))
    defined.update(name for graph in every for node in graph.node for name in node.output)
    taken = onnx_graph.names_of(main)
    for graph in every:
        fixed = {value.name for value in (*graph.input, *graph.output)}
        nodes = [(place, constant(node), node.output[:1]) for place, node in enumerate(graph.node)]
        held = [(graph.node, place, proto, names[0]) for place, proto, names in nodes if proto is not None]
        if graph is not main:
            held += [(graph.initializer, place, proto, proto.name) for place, proto in enumerate(graph.initializer)]
        for holder, place, proto, name in reversed(held):
            if proto.data_type not in _FLOATS or int(np.prod(proto.dims)) < 2 or name in fixed:
                continue
            made = main.initializer.add()
            made.CopyFrom(proto)
            made.name = name if defined[name] == 1 else onnx_graph.free_name(name, taken)
            if made.name != name:
                for inner in _graphs(graph):
                    for node in inner.node:
                        node.input[:] = [made.name if one == name else one for one in node.input]
            del holder[place]


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and all its subgraphs."""
    yield graph
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from _graphs(inner)
