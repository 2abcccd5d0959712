# SPDX-License-Identifier: Apache-2.0
"""Which constants of a model are weights: those that enter known operators as weights, and nothing else. Shapes,
scales, ranges, axes and epsilons are none, and neither are the codes and scales of DequantizeLinear, which stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpucast.files.onnx_graph import inner_graphs

#: Operators of ONNX and of onnxruntime's com.microsoft, and their inputs that are weights.
_INPUTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("MatMul", "FusedMatMul", "Einsum"), (0, 1)),
    **dict.fromkeys(("Gemm", "FusedGemm"), (0, 1, 2)),
    **dict.fromkeys(("Conv", "ConvTranspose", "FusedConv", "NhwcConv", "Attention"), (1, 2)),
    "DeformConv": (1, 3),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2, 3)),
    **dict.fromkeys(("LayerNormalization", "GroupNormalization", "InstanceNormalization"), (1, 2)),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization", "PRelu", "BiasGelu", "FastGelu"), (1,)),
    "BatchNormalization": (1, 2),
    "SkipLayerNormalization": (2, 3, 4),
    "SkipSimplifiedLayerNormalization": (2,),
    "EmbedLayerNormalization": (2, 3, 4, 5, 6),
    "MultiHeadAttention": (3,),
    "MoE": (2, 3, 4, 5),
}
#: Tables that rows are taken from; of fewer dimensions they may be anything.
_TABLES = {"Gather": (0,), "Concat": range(1 << 16)}
#: Biases and factors of layers, beside an input that depends on data. One number is no weight: it may be an epsilon.
_ELEMENTWISE = ("Add", "Sub", "Mul")
#: What enters these is what its result enters.
_PASSED = ("Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Slice", "Split", "Flatten")
_CODES = (
    *("DequantizeLinear", "QuantizeLinear", "MatMulNBits", "MatMulBnb4", "DynamicQuantizeMatMul", "QLinearMatMul"),
    *("QLinearConv", "QAttention", "QGemm", "GatherBlockQuantized", "QMoE", "QLinearAdd"),
)
_DOMAINS = ("", "ai.onnx", "com.microsoft")


def of_model(model: Any) -> dict[str, str]:
    """For each initializer of the main graph, and each output of its Constants: why it is no weight; "" if it is."""
    return _Graph(model.graph).all()


class _Graph:
    def __init__(self, graph: Any) -> None:
        self._uses: dict[str, list[tuple[Any, int]]] = {}
        self._sizes = {proto.name: tuple(proto.dims) for proto in graph.initializer}
        #: Values that no input changes, or only by its shape.
        self._fixed: set[str] = set(self._sizes) - {value.name for value in graph.input}
        for node in graph.node:
            if (proto := constant(node)) is not None:
                self._sizes[node.output[0]] = tuple(proto.dims)
        self._outputs: set[str] = set()
        self._enter(graph)

    def all(self) -> dict[str, str]:
        return {name: self._why_not(name, shape, set()) for name, shape in self._sizes.items()}

    def _enter(self, graph: Any) -> None:
        self._outputs |= {value.name for value in graph.output}
        for node in graph.node:
            for place, name in enumerate(node.input):
                self._uses.setdefault(name, []).append((node, place))
            is_source = node.op_type in ("Shape", "Size", "Constant")
            if is_source or (node.input and all(name in self._fixed for name in node.input if name)):
                self._fixed.update(node.output)
            for inner in inner_graphs(node):
                self._fixed.update(proto.name for proto in inner.initializer)
                self._enter(inner)

    def _why_not(self, name: str, shape: Sequence[int], seen: set[str]) -> str:
        """Why a value of that shape, or a result of it, is no weight."""
        if name in self._outputs:
            return "it is an output of a graph"
        seen.add(name)
        uses = self._uses.get(name, [])
        reasons = (self._of_use(node, place, shape, seen) for node, place in uses)
        return "nothing uses it" if not uses else next(filter(None, reasons), "")

    def _of_use(self, node: Any, place: int, shape: Sequence[int], seen: set[str]) -> str:
        operator = node.op_type if node.domain in _DOMAINS else f"{node.domain}.{node.op_type}"
        if operator in _PASSED and place == 0:
            made = [name for name in node.output if name and name not in seen]
            return next(filter(None, (self._why_not(name, shape, seen) for name in made)), "")
        if operator in _CODES:
            return f"{operator} takes codes and scales, which stay whole"
        depends = any(name and name not in self._fixed for name in node.input)
        several = any(size > 1 for size in shape)
        is_weight = place in _INPUTS.get(operator, ())
        is_weight |= place in _TABLES.get(operator, ()) and len(shape) > 1 and depends
        is_weight |= operator in _ELEMENTWISE and several and depends
        return "" if is_weight else f"{operator} takes no weight there"


def constant(node: Any) -> Any:
    """The tensor of a Constant; None for other nodes, and for those of numbers and lists."""
    if node.op_type != "Constant" or len(node.output) != 1:
        return None
    return next((one.t for one in node.attribute if one.name == "value" and one.HasField("t")), None)


def move_constants(model: Any, weights: dict[str, str]) -> None:
    """Make initializers of the main graph's Constants that are weights, so that they are cast as such."""
    # Before this version of the format an initializer had to be an input, too.
    if model.ir_version < 4:
        return
    for place, node, proto in list(_constants(model.graph))[::-1]:
        if weights.get(node.output[0]) == "":
            made = model.graph.initializer.add()
            made.CopyFrom(proto)
            made.name = node.output[0]
            del model.graph.node[place]


def _constants(graph: Any) -> Iterator[tuple[int, Any, Any]]:
    for place, node in enumerate(graph.node):
        if (proto := constant(node)) is not None:
            yield place, node, proto
