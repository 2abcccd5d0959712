# SPDX-License-Identifier: Apache-2.0
"""Cast and CastLike in onnx's reference evaluator: every version's types, attributes and rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.defs
import pytest

import gpucast
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.rule import CAST_VERSIONS, CASTLIKE_VERSIONS
from onnx_models import ROWS, cast_like_model, cast_model, run_operator, zeros

FLOAT, STRING, E4M3FN, E8M0 = (ROWS[name] for name in ("FLOAT", "STRING", "FLOAT8E4M3FN", "FLOAT8E8M0"))
#: Attributes with their default values.
DEFAULTS: dict[str, Any] = {"saturate": 1, "round_mode": "up"}
VERSIONS = [("Cast", version) for version in CAST_VERSIONS] + [("CastLike", version) for version in CASTLIKE_VERSIONS]


def run_pair(operator: str, src: DType, dst: DType, opset: int, **attributes: Any) -> Any:
    if operator == "Cast":
        return run_operator(cast_model(src, dst, opset, **attributes), zeros(src))
    return run_operator(cast_like_model(src, dst, opset, **attributes), zeros(src), zeros(dst, (0,)))


def schema_types(operator: str, version: int) -> set[DType]:
    constraint = onnx.defs.get_schema(operator, version).type_constraints[0]
    return {gpucast.dtype(text.removeprefix("tensor(").removesuffix(")")) for text in constraint.allowed_type_strs}


@pytest.mark.parametrize(("operator", "versions"), [("Cast", CAST_VERSIONS), ("CastLike", CASTLIKE_VERSIONS)])
def test_versions_are_those_of_onnx(operator: str, versions: tuple[int, ...]) -> None:
    history = {
        s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == ("", operator)
    }
    assert {version for version in history if version <= gpucast.DEFAULT_OPSET} == set(versions)


@pytest.mark.parametrize(("operator", "version"), VERSIONS)
def test_types_of_a_version(operator: str, version: int) -> None:
    legal = schema_types(operator, version)
    assert FLOAT in legal
    for row in DTYPES:
        for src, dst in ((row, FLOAT), (FLOAT, row)):
            if row in legal:
                result = run_pair(operator, src, dst, version)
                assert (result.dtype, result.shape) == (dst.numpy, (1,))
            else:
                with pytest.raises(TypeError, match=rf"{row.name} entered at opset {row.opset}"):
                    run_pair(operator, src, dst, version)


@pytest.mark.parametrize(("operator", "version"), VERSIONS)
def test_attributes_of_a_version_are_judged_by_presence(operator: str, version: int) -> None:
    legal = onnx.defs.get_schema(operator, version).attributes
    for name, value in DEFAULTS.items():
        if name in legal:
            run_pair(operator, FLOAT, FLOAT, version, **{name: value})
        else:
            with pytest.raises(
                ValueError, match=rf"^{operator}: attribute '{name}' needs opset \d+; opset={version} has"
            ):
                run_pair(operator, FLOAT, FLOAT, version, **{name: value})
    with pytest.raises(ValueError, match=f"^{operator}: attribute 'mode' is unknown"):
        run_pair(operator, FLOAT, FLOAT, version, mode=1)


def test_an_opset_between_versions_has_the_older_one() -> None:
    with pytest.raises(ValueError, match="opset=18 has version 13"):
        run_pair("Cast", FLOAT, FLOAT, 18, saturate=1)
    with pytest.raises(TypeError, match=r"FLOAT6E2M3 entered at opset 28; opset=28 has version 25"):
        run_pair("CastLike", FLOAT, ROWS["FLOAT6E2M3"], 28)


@pytest.mark.parametrize(("operator", "opset"), [("Cast", 0), ("Cast", 29), ("CastLike", 14), ("CastLike", 29)])
def test_opset_without_a_known_version(operator: str, opset: int) -> None:
    with pytest.raises(ValueError, match=f"^{operator}: opset={opset} is not supported"):
        run_pair(operator, FLOAT, FLOAT, opset)


def test_to_is_required_and_castlike_has_none() -> None:
    model = cast_model(FLOAT, FLOAT, 28)
    del model.graph.node[0].attribute[:]
    with pytest.raises(ValueError, match=r"^Cast: attribute 'to' is required; the node has none"):
        run_operator(model, zeros(FLOAT))
    with pytest.raises(ValueError, match=r"^CastLike: attribute 'to' is unknown"):
        run_pair("CastLike", FLOAT, FLOAT, 25, to=1)


@pytest.mark.parametrize(
    ("opset", "attributes", "error", "message"),
    [
        (1, {"to": 10}, ValueError, "attribute to=10 must be a string in opset 1"),
        (1, {"to": "FLOAT17"}, TypeError, "to='FLOAT17' is not a dtype"),
        (1, {"to": "BFLOAT16"}, TypeError, "BFLOAT16 entered at opset 13"),
        (6, {"to": "FLOAT16"}, ValueError, "attribute to='FLOAT16' must be an integer in opset 6"),
        (28, {"to": 1.0}, ValueError, "attribute to=.*1.0.* must be an integer"),
        (28, {"to": 0}, TypeError, "to=0 is not a dtype"),
        (28, {"to": 99}, TypeError, "to=99 is not a dtype"),
        (28, {"to": onnx.TensorProto.COMPLEX64}, TypeError, "to=14 is not a dtype"),
        (28, {"saturate": "true"}, ValueError, "attribute saturate='true' must be an integer"),
        (28, {"round_mode": 1}, ValueError, "attribute round_mode=1 must be a string"),
        (28, {"round_mode": "UP"}, ValueError, "round_mode='UP' is not legal"),
    ],
)
def test_illegal_attribute_values(opset: int, attributes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run_operator(cast_model(FLOAT, FLOAT, opset, **attributes), zeros(FLOAT))


@pytest.mark.parametrize("row", [row for row in DTYPES if row.opset == 1], ids=str)
def test_version_1_names_its_type(row: DType) -> None:
    result = run_operator(cast_model(FLOAT, row, 1, to=row.name), np.array([1.0, 0.0], np.float32))
    np.testing.assert_array_equal(result, np.array([1, 0], row.numpy), strict=True)


@pytest.mark.parametrize("operator", ["Cast", "CastLike"])
@pytest.mark.parametrize(("saturate", "code"), [({}, 0x7E), ({"saturate": 1}, 0x7E), ({"saturate": 0}, 0x7F),
                                                ({"saturate": 2}, 0x7E), ({"saturate": -1}, 0x7E)])  # fmt: skip
def test_any_saturate_but_0_is_true(operator: str, saturate: dict[str, int], code: int) -> None:
    x = np.array([1e6], np.float32)
    if operator == "Cast":
        result = run_operator(cast_model(FLOAT, E4M3FN, 19, **saturate), x)
    else:
        result = run_operator(cast_like_model(FLOAT, E4M3FN, 19, **saturate), x, zeros(E4M3FN, (2, 0)))
    assert result.view(np.uint8).tolist() == [code]


@pytest.mark.parametrize("opset", [24, 25, 28])
@pytest.mark.parametrize(("attributes", "codes"), [({}, [0x80, 0x80]), ({"round_mode": "up"}, [0x80, 0x80]),
                                                   ({"round_mode": "down"}, [0x7F, 0x7F]),
                                                   ({"round_mode": "nearest"}, [0x7F, 0x80])])  # fmt: skip
def test_round_mode_of_both_operators(opset: int, attributes: dict[str, str], codes: list[int]) -> None:
    x = np.array([1.25, 1.5], np.float32)
    cast = run_operator(cast_model(FLOAT, E8M0, opset, **attributes), x)
    cast_like = run_operator(cast_like_model(FLOAT, E8M0, opset, **attributes), x, zeros(E8M0))
    assert cast.view(np.uint8).tolist() == cast_like.view(np.uint8).tolist() == codes


def test_an_input_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Cast: the input is a list; expected a tensor"):
        run_operator(cast_model(FLOAT, FLOAT, 28), [1.0])
    with pytest.raises(TypeError, match=r"^CastLike: input of type 'complex64' is complex"):
        run_operator(cast_like_model(FLOAT, FLOAT, 25), zeros(FLOAT), np.zeros(1, np.complex64))
