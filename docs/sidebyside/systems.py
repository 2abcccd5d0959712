# SPDX-License-Identifier: Apache-2.0
"""The systems that are compared with gpucast. Each package is imported when its system is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import gpucast
from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.core.dtypes import DType
from gpucast.core.rule import ROUND_MODES, RoundMode

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Setting:
    """The attributes of a cast; the opset matters only where it is below 24."""

    saturate: bool = True
    round_mode: RoundMode = "up"
    old: bool = False

    def attributes(self) -> dict[str, Any]:
        """Those of an ONNX node that differ from the defaults."""
        found: dict[str, Any] = {} if self.saturate else {"saturate": 0}
        return found if self.round_mode == "up" else found | {"round_mode": self.round_mode}

    def __str__(self) -> str:
        texts = [f"{name}={value}" for name, value in self.attributes().items()] + ["opset 23"] * self.old
        return " ".join(texts) or "default"

    def cast(self, x: Array, dst: DType) -> Array:
        """What gpucast gives."""
        opset = 23 if self.old else gpucast.DEFAULT_OPSET
        result: Array = gpucast.cast(x, dst, saturate=self.saturate, round_mode=self.round_mode, opset=opset)
        return result


class UnsupportedError(Exception):
    """The system refuses a cast."""


def cast_model(src: DType, dst: DType, opset: int, ir_version: int, operator: str = "Cast", **attributes: Any) -> Any:
    """A model of one node: Cast from x to y, or CastLike of x and like."""
    from onnx import helper

    inputs = {"x": src} if operator == "Cast" else {"x": src, "like": dst}
    if operator == "Cast":
        attributes = {"to": dst.number} | attributes
    graph = helper.make_graph(
        [helper.make_node(operator, [*inputs], ["y"], **attributes)],
        "cast",
        [helper.make_tensor_value_info(name, row.number or 0, None) for name, row in inputs.items()],
        [helper.make_tensor_value_info("y", dst.number or 0, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


class System:
    title: str
    version: str
    #: The newest opset and IR version that it takes.
    opset = gpucast.DEFAULT_OPSET
    ir_version = 14
    #: False where it has none of the operator's attributes.
    has_attributes = True

    def settings(self, src: DType, dst: DType) -> list[Setting]:
        """Every value of every attribute that means something for the pair."""
        modes: tuple[RoundMode, ...] = ROUND_MODES if dst.family == "e8m0" else ("up",)
        choices = (True, False) if dst.saturate_applies else (True,)
        found = [Setting(saturate, mode) for saturate in choices for mode in modes]
        if dst.specials == "fnuz" and (src.opset or 0) <= 23:
            found.append(Setting(old=True))
        return found

    def cast(self, x: Array, src: DType, dst: DType, setting: Setting) -> Array:
        """Cast a flat array of numbers; UnsupportedError where the system does not."""
        opset = 23 if setting.old else self.opset
        try:
            result = self.run(cast_model(src, dst, opset, self.ir_version, **setting.attributes()), {"x": x})
        except Exception as error:
            raise UnsupportedError(str(error)) from None
        if result.dtype != dst.numpy:
            raise UnsupportedError(f"gives {result.dtype}")
        return result

    def run(self, model: Any, feeds: dict[str, Array]) -> Array:
        raise NotImplementedError


class MlDtypes(System):
    title = "ml_dtypes"
    has_attributes = False

    def __init__(self) -> None:
        self.version = f"ml_dtypes {ml_dtypes.__version__}, NumPy {np.__version__}"

    def settings(self, src: DType, dst: DType) -> list[Setting]:
        """The one that is nearest to what it does."""
        return [Setting(saturate=not dst.saturate_applies, round_mode="nearest" if dst.family == "e8m0" else "up")]

    def cast(self, x: Array, src: DType, dst: DType, setting: Setting) -> Array:
        try:
            return x.astype(dst.numpy)
        except TypeError as error:
            raise UnsupportedError(str(error)) from None


class OnnxReference(System):
    title = "The onnx reference evaluator"

    def __init__(self) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        self.version = f"onnx {onnx.__version__}, NumPy {np.__version__}"
        self._evaluator = ReferenceEvaluator

    def run(self, model: Any, feeds: dict[str, Array]) -> Array:
        return self._evaluator(model).run(None, feeds)[0]  # type: ignore[no-any-return,index]


class GpucastOperators(OnnxReference):
    """Our own operators, for the models that are no plain casts."""

    def run(self, model: Any, feeds: dict[str, Array]) -> Array:
        from gpucast.interop.onnx import Cast, CastLike

        return self._evaluator(model, new_ops=[Cast, CastLike]).run(None, feeds)[0]  # type: ignore[no-any-return,index]


class OnnxRuntime(System):
    title = "onnxruntime"
    opset = 26
    ir_version = 13

    def __init__(self) -> None:
        import onnxruntime
        from onnx.numpy_helper import from_array

        self.version = f"onnxruntime {onnxruntime.__version__}, CPU"
        self._session = onnxruntime.InferenceSession
        self._tensor = from_array
        self._options = onnxruntime.SessionOptions()
        self._options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._options.intra_op_num_threads = 1
        self._options.log_severity_level = 4

    def run(self, model: Any, feeds: dict[str, Array]) -> Array:
        # Its Python API takes and returns few of the types as arrays: text goes in as part of the model, numbers go in
        # and out as plain memory.
        x, dst = feeds["x"], gpucast.dtype(model.graph.output[0].type.tensor_type.elem_type)
        if gpucast.dtype(x.dtype).family == "string":
            feeds = {}
            model.graph.initializer.append(self._tensor(x, model.graph.input.pop(0).name))
        session = self._session(model.SerializeToString(), self._options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        memory = {name: _bytes(array) for name, array in feeds.items()}
        for name, array in feeds.items():
            number = gpucast.dtype(array.dtype).number
            binding.bind_input(name, "cpu", 0, number, array.shape, memory[name].ctypes.data)
        if dst.family == "string":
            binding.bind_output("y", "cpu")
            session.run_with_iobinding(binding)
            return binding.get_outputs()[0].numpy()  # type: ignore[no-any-return]
        result = np.zeros(max(dst.nbytes(x.size), 1), np.uint8)
        binding.bind_output("y", "cpu", 0, dst.number, x.shape, result.ctypes.data)
        session.run_with_iobinding(binding)
        codes: Array = unpack_codes(result, dst.bits, x.size) if dst.packed else result
        return codes.view(dst.numpy).reshape(x.shape)


def _bytes(x: Array) -> Array:
    """Elements as ONNX raw_data, with room for one byte at least."""
    row = gpucast.dtype(x.dtype)
    data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    packed: Array = pack_codes(data, row.bits) if row.packed else data
    return packed if packed.size else np.zeros(1, np.uint8)


#: Names on the command line.
SYSTEMS: dict[str, type[System]] = {"ml_dtypes": MlDtypes, "onnx": OnnxReference, "onnxruntime": OnnxRuntime}
