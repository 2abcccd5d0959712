# SPDX-License-Identifier: Apache-2.0
"""The rivals of the full benchmark only: those that compile, and those that are rarely installed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from bench.cases.buffers import Sets
from bench.cases.contenders import Contender, CupyAstype, Run, TorchTo, available, contenders
from bench.timing.machine import Array, Machine
from gpucast.core.dtypes import DType

#: The variable that stops XLA from allocating most of the memory when it starts.
_XLA_MEMORY = "XLA_PYTHON_CLIENT_PREALLOCATE"


class CupyElementwise(CupyAstype):
    """An ElementwiseKernel whose one line is a C++ cast, as people write it."""

    name = "CuPy ElementwiseKernel"
    allocates = False

    def prepare(self, sets: Sets) -> Run:
        kernel = self.cupy.ElementwiseKernel("T x", "U y", "y = static_cast<U>(x)", "elementwise_cast")
        xs, outs = sets.source_arrays(), sets.out_arrays()
        return lambda i: kernel(xs[i], outs[i])


class TorchCompile(TorchTo):
    """``torch.compile`` of a function that casts."""

    name = "torch.compile"
    heavy = True

    def prepare(self, sets: Sets) -> Run:
        kind, xs = getattr(self.torch, sets.dst.numpy_name), self.tensors(sets)
        # Otherwise the limit of compiled functions, which includes earlier pairs, may make it fall back to eager mode.
        self.torch._dynamo.reset()
        compiled = self.torch.compile(lambda x: x.to(kind, copy=True), fullgraph=True, dynamic=False)
        return lambda i: compiled(xs[i])


class JaxJit:
    """``jax.jit`` of ``x.astype(dtype)``. It runs on a stream of its own, so that the host's clock times it."""

    name = "jax.jit"
    allocates = True
    heavy = True
    streamed = False

    def __init__(self, machine: Machine) -> None:
        os.environ.setdefault(_XLA_MEMORY, "false")
        import jax

        # JAX is only partly typed.
        self.jax: Any = jax
        self.machine = machine
        self.jax.config.update("jax_enable_x64", True)
        if machine.stream is not None and jax.default_backend() != "gpu":
            raise ImportError("jax cannot use the GPU")

    def supports(self, src: DType, dst: DType) -> bool:
        return all(not dtype.packed and hasattr(self.jax.numpy, _jax_name(dtype)) for dtype in (src, dst))

    def arrays(self, sets: Sets) -> list[Any]:
        """Copies of the sources, because DLPack does not support every type."""
        jax, codes, view = self.jax, sets.src.code_numpy, sets.layout.view
        kind = getattr(jax.numpy, _jax_name(sets.src))
        self.machine.synchronize()
        made = (jax.dlpack.from_dlpack(data.view(codes)) for data in sets.sources)
        return [
            view(flat != 0 if sets.src.family == "bool" else jax.lax.bitcast_convert_type(flat, kind)) for flat in made
        ]

    def prepare(self, sets: Sets) -> Run:
        xs, kind = self.arrays(sets), getattr(self.jax.numpy, _jax_name(sets.dst))
        compiled = self.jax.jit(lambda x: x.astype(kind))
        return lambda i: compiled(xs[i])

    def wait(self, result: Any) -> None:
        self.jax.block_until_ready(result)

    def codes(self, result: Any, dst: DType, count: int) -> Array:
        return np.asarray(result.reshape(-1)[:count]).view(dst.code_numpy)


def _jax_name(dtype: DType) -> str:
    return "bool_" if dtype.family == "bool" else dtype.numpy_name


class TransformerEngine(TorchTo):
    """TransformerEngine's quantising cast to float8, with a scale of one; it saturates, and keeps the largest value."""

    name = "TransformerEngine"
    allocates = False

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        if machine.stream is None:
            raise ImportError("TransformerEngine needs a GPU")
        import transformer_engine_torch as tex
        from transformer_engine.pytorch.tensor.float8_tensor import Float8Quantizer

        self.kinds = {"FLOAT8E4M3FN": tex.DType.kFloat8E4M3, "FLOAT8E5M2": tex.DType.kFloat8E5M2}
        self.quantizer = Float8Quantizer

    def supports(self, src: DType, dst: DType) -> bool:
        return src.name in ("FLOAT", "FLOAT16", "BFLOAT16") and dst.name in self.kinds

    def prepare(self, sets: Sets) -> Run:
        torch = self.torch
        scale, largest = torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
        quantizer = self.quantizer(scale, largest, self.kinds[sets.dst.name], rowwise=True, columnwise=False)
        # It casts matrices only.
        xs = [x.reshape(1, -1) for x in self.tensors(sets)]
        outs = [quantizer.make_empty(x.shape, dtype=x.dtype, device="cuda") for x in xs]

        def run(i: int) -> Any:
            quantizer.update_quantized(xs[i], outs[i])
            return outs[i]

        return run

    def codes(self, result: Any, dst: DType, count: int) -> Array:
        return np.asarray(result._data.reshape(-1)[:count].cpu().numpy())


class OnnxRuntime:
    """ONNX Runtime's Cast, a model of one node, on arrays that are bound beforehand; timed by the host's clock."""

    name = "ONNX Runtime"
    allocates = False
    heavy = True
    streamed = False

    def __init__(self, machine: Machine) -> None:
        import onnx
        import onnxruntime

        self.onnx, self.runtime, self.machine = onnx, onnxruntime, machine
        self.device = "cpu" if machine.stream is None else "cuda"
        self.provider = "CPUExecutionProvider" if machine.stream is None else "CUDAExecutionProvider"
        if self.provider not in onnxruntime.get_available_providers():
            raise ImportError(f"onnxruntime has no {self.provider}")

    def supports(self, src: DType, dst: DType) -> bool:
        # It passes equal types through without a cast, and has its own layouts of types below one byte.
        return src is not dst and not (src.packed or dst.packed)

    def prepare(self, sets: Sets) -> Run:
        if sets.layout.kind != "flat":
            raise ValueError("ONNX Runtime takes contiguous arrays only")
        session = self._session(sets.src, sets.dst)
        bindings = []
        for source, out in zip(sets.sources, sets.outs, strict=True):
            binding = session.io_binding()
            binding.bind_input("x", self.device, 0, sets.src.number, (sets.n,), _address(source))
            binding.bind_output("y", self.device, 0, sets.dst.number, (sets.n,), _address(out))
            bindings.append(binding)
        options = self.runtime.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def run(i: int) -> Any:
            session.run_with_iobinding(bindings[i], options)
            return bindings[i], sets.outs[i]

        return run

    def _session(self, src: DType, dst: DType) -> Any:
        helper = self.onnx.helper
        node = helper.make_node("Cast", ["x"], ["y"], to=dst.number)
        ends = [helper.make_tensor_value_info(name, dtype.number, ["n"]) for name, dtype in (("x", src), ("y", dst))]
        graph = helper.make_graph([node], "cast", ends[:1], ends[1:])
        opset = max(19, src.opset or 1, dst.opset or 1)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        options = self.runtime.SessionOptions()
        options.log_severity_level = 4
        # Otherwise it would silently cast on the host what the GPU does not support.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1" if self.device == "cuda" else "0")
        return self.runtime.InferenceSession(model.SerializeToString(), options, providers=[self.provider])

    def wait(self, result: Any) -> None:
        result[0].synchronize_outputs()

    def codes(self, result: Any, dst: DType, count: int) -> Array:
        return self.machine.download(result[1].view(dst.code_numpy)[:count])


def _address(data: Any) -> int:
    return int(data.ctypes.data if isinstance(data, np.ndarray) else data.data.ptr)


def all_contenders(machine: Machine) -> list[Contender]:
    """Ours, the rivals of `gpucast bench`, and those of this module that can be imported."""
    kinds = (TorchCompile, JaxJit, TransformerEngine, OnnxRuntime)
    return [*contenders(machine), *available(kinds if machine.stream is None else (CupyElementwise, *kinds), machine)]
