# SPDX-License-Identifier: Apache-2.0
"""Cast and CastLike for onnx's reference evaluator. Import them from `gpucast.interop.onnx`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference.op_run import OpRun

from gpucast.casting import cast as casting
from gpucast.core.dtypes import DType, dtype
from gpucast.core.options import CAST_VERSIONS, CASTLIKE_VERSIONS
from gpucast.core.rule import ROUND_MODE_SINCE, SATURATE_SINCE, newest_version

Array = npt.NDArray[Any]


class _Operator(OpRun):
    """What Cast and CastLike share: which attributes a node may have, and what ONNX means by their values."""

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

    def _run(self, x: Any, to: Any, saturate: Any = None, round_mode: Any = None) -> tuple[Array]:
        # Version 1 has the type's name as text, later versions its number.
        dst = dtype(self._checked("to", to, str if self._opset < CAST_VERSIONS[1] else int), caller="Cast: to=")
        keywords = self._keywords(saturate, round_mode, _dtype_of(x, "Cast"), dst)
        return (_on_host(casting.cast(x, dst, **keywords)),)


class CastLike(_Operator):
    """The operator CastLike, versions 15, 19, 21, 23, 24 and 25; only the type of `like` matters."""

    versions = CASTLIKE_VERSIONS
    attributes: ClassVar[Mapping[str, int]] = {"saturate": SATURATE_SINCE, "round_mode": ROUND_MODE_SINCE}

    def _run(self, x: Any, like: Any, saturate: Any = None, round_mode: Any = None) -> tuple[Array]:
        keywords = self._keywords(saturate, round_mode, _dtype_of(x, "CastLike"), _dtype_of(like, "CastLike"))
        return (_on_host(casting.cast_like(x, like, **keywords)),)


def _dtype_of(x: Any, caller: str) -> DType:
    if not isinstance(x, (np.ndarray, np.generic)):
        raise TypeError(f"{caller}: the input is a {type(x).__name__}; expected a tensor (numpy.ndarray)")
    return dtype(x.dtype, caller=f"{caller}: input of type ")


def _on_host(x: Any) -> Array:
    return x if isinstance(x, np.ndarray) else x.get()
