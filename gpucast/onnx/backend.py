# SPDX-License-Identifier: Apache-2.0
"""ONNX models that cast with gpucast: operators for onnx's reference evaluator, a backend, and constant folding.

- ``ReferenceEvaluator(model, new_ops=[Cast, CastLike])`` replaces onnx's own two operators: all ten versions of Cast
  and all six of CastLike, with the types, attributes and rules of the version that the model's opset import selects.
  onnx does not hand `new_ops` on to functions that the model itself defines; `Backend` reaches those too.
- `Backend` runs whole models (``onnx.backend.base``); every other operator runs on onnx's reference evaluator.
- ``fold_casts(model)`` replaces the casts of constants by their results.

Tensors are NumPy arrays: the types that NumPy lacks as ml_dtypes arrays, STRING as object arrays of str.
Sources: the Cast and CastLike schemas, ``onnx.reference.op_run``, ``onnx.backend.base``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpucast.casting import cast as casting
from gpucast.core.dtypes import dtype
from gpucast.core.errors import DeviceUnavailable, printable
from gpucast.core.rule import DEFAULT_OPSET, Options

try:
    import onnx
    import onnx.checker
    import onnx.defs
    import onnx.helper
    import onnx.shape_inference
    from onnx.backend.base import Backend as OnnxBackend
    from onnx.backend.base import BackendRep as OnnxBackendRep
    from onnx.reference import ReferenceEvaluator

    from gpucast.onnx.operators import Cast, CastLike, Evaluator, fold_casts, graph_of
except ImportError as error:
    raise ImportError(
        f"gpucast.interop.onnx needs the onnx package ({error}): pip install onnx, or pip install 'gpucast[onnx]'"
    ) from error

__all__ = ["Backend", "BackendRep", "Cast", "CastLike", "fold_casts"]


def _evaluator(device: str) -> type[Evaluator]:
    """The evaluator that casts on a device of onnx's spelling ("CPU", "CUDA", "CUDA:1")."""
    if device == "CPU":
        return Evaluator
    placed = tuple(type(cls.__name__, (cls,), {"device": device.lower()}) for cls in Evaluator.operators)
    return type(Evaluator.__name__, (Evaluator,), {"operators": placed})


class BackendRep(OnnxBackendRep):
    """A prepared model."""

    def __init__(self, evaluator: ReferenceEvaluator) -> None:
        self._evaluator = evaluator
        graph = evaluator.proto_.graph
        initialized = {tensor.name for tensor in graph.initializer}
        #: All that the caller may give.
        self._known = initialized | {value.name for value in graph.input}
        #: The inputs that the caller must give, in order.
        self._required = [value.name for value in graph.input if value.name not in initialized]
        self._types = {value.name: value.type for value in [*graph.input, *graph.output]}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model: `inputs` is a sequence of arrays in the order of the graph's inputs, or a mapping by name.

        Inputs that have an initializer are optional, and given by name. Returns the outputs in the graph's order.
        ValueError for missing inputs, and for tensors of another type than the model declares.
        """
        if not isinstance(inputs, Mapping):
            if not isinstance(inputs, Sequence):
                raise TypeError(f"run: inputs is a {type(inputs).__name__}; expected a sequence or a mapping of arrays")
            if len(inputs) != len(self._required):
                names = printable(", ".join(self._required))
                raise ValueError(f"run: got {len(inputs)} inputs; the model takes {len(self._required)}: {names}")
            inputs = dict(zip(self._required, inputs, strict=True))
        missing = [name for name in self._required if name not in inputs]
        if missing:
            wanted, got = printable(", ".join(missing)), printable(", ".join(map(str, inputs))) or "nothing"
            raise ValueError(f"run: no value for {wanted}; got {got}")
        unknown = [name for name in inputs if name not in self._known]
        if unknown:
            raise ValueError(
                f"run: the model has no input {printable(', '.join(map(str, unknown)))}; expected "
                f"{printable(', '.join(self._required)) or 'nothing'}"
            )
        for name, value in inputs.items():
            self._check_type("input", name, value)
        names = self._evaluator.output_names
        outputs = tuple(self._evaluator.run(names, dict(inputs)))
        for name, value in zip(names, outputs, strict=True):
            self._check_type("output", name, value)
        return outputs

    def _check_type(self, role: str, name: str, value: Any) -> None:
        declared = self._types[name].tensor_type.elem_type if name in self._types else 0
        if declared == 0 or not isinstance(value, np.ndarray):
            return
        try:
            actual = dtype(value.dtype).number
        except TypeError:
            # Other operators have types that Cast lacks.
            actual = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        if actual != declared:
            type_name = onnx.TensorProto.DataType.Name
            raise ValueError(f"run: {role} {name!r} is {type_name(actual)}; the model declares {type_name(declared)}")


class Backend(OnnxBackend):
    """The ONNX backend interface. Devices: "CPU", and "CUDA" (or "CUDA:1") where gpucast can cast on a GPU."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """True if `prepare` takes the model."""
        try:
            cls.prepare(model, device, **kwargs)
        except Exception:  # onnx raises many kinds; each one means that the model does not run
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Check the model with onnx's checker, types included, and load it.

        Raises onnx's ValidationError or InferenceError for a bad model, ValueError for attributes that the opset's
        Cast or CastLike lacks, ``gpucast.DeviceUnavailable`` for a device that cannot be used.
        """
        cls._require(device)
        onnx.checker.check_model(model)
        # Not the checker's full check: it is strict, and refuses legal models whose shapes onnx cannot infer.
        onnx.shape_inference.infer_shapes(model, check_type=True)
        return BackendRep(_evaluator(device)(model))

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one node on a sequence of arrays, in the order of its inputs (None for one that is left out).

        ``opset_version=N`` selects the opset; the default is the newest that onnx and gpucast both know.
        """
        cls._require(device)
        opset = kwargs.get("opset_version", min(onnx.defs.onnx_opset_version(), DEFAULT_OPSET))
        super().run_node(node, inputs, device, outputs_info, opset_version=opset)
        if len(inputs) != len(node.input):
            names = printable(", ".join(node.input))
            raise ValueError(f"run_node: got {len(inputs)} inputs; the node takes {len(node.input)}: {names}")
        values = {name: np.asarray(value) for name, value in zip(node.input, inputs, strict=True) if name}
        return tuple(_evaluator(device)(graph_of(node, values), opsets={"": opset}).run(None, values))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        try:
            cls._require(device)
        except (ValueError, DeviceUnavailable):
            return False
        return True

    @staticmethod
    def _require(device: str) -> None:
        """Refuse a device that casts cannot use now."""
        if device == "CPU":
            return
        if not (isinstance(device, str) and re.fullmatch("CUDA(:[0-9]+)?", device)):
            raise ValueError(f"Backend: device={device!r} is not known; expected 'CPU', 'CUDA' or 'CUDA:N'")
        # A trial cast shows, as no query does, whether driver, libraries and compiler work together.
        options = Options(device=device.lower(), caller="Backend")
        casting.cast_with(np.zeros(1, np.float32), "FLOAT16", options)
