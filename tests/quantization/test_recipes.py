# SPDX-License-Identifier: Apache-2.0
"""Recipes have the codes and scales of other libraries, on the host and on devices."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from bench.peers import recipe_packages, recipes
from bench.peers.recipe_models import models
from gpucast.cli.main import main
from gpucast.core.dtypes import dtype
from gpucast.quantization import RECIPES, Format, Quantized, Steps, exact_quantize
from gpucast.quantization.cuda.step_source import step_functions
from quantization_cases import compare
from tests import host_driver

MODELS = models()
#: A recipe for each kind of kernel and formula, with a type: rows and tiles, powers of two; scales and factors by
#: exponents alone; the largest magnitude kept to the end; a global scale that is found last; a division, rounding to
#: the array's type, and a scale that replaces 0.
ON_DEVICE = (
    ("deepgemm-ue8m0", ml_dtypes.bfloat16, "both"),
    ("microxcaling-mxfp8", ml_dtypes.bfloat16, False),
    ("torchao-0.18-mxfp8-even", ml_dtypes.bfloat16, False),
    ("tilekernels", np.float32, False),
    ("te-nvfp4", np.float32, False),
    ("compressed-tensors-int8-row", ml_dtypes.bfloat16, False),
    ("compressed-tensors-fp8", np.float16, False),
    ("modelopt-nvfp4", ml_dtypes.bfloat16, False),
    ("torchao-int4-32", ml_dtypes.bfloat16, False),
    ("torchao-float8-row", np.float32, False),
)


def test_every_recipe_has_a_model() -> None:
    assert MODELS.keys() == RECIPES.keys()


@pytest.mark.parametrize("name", RECIPES)
def test_codes_and_scales_are_those_of_the_library(name: str) -> None:
    found = recipes.compared(name, MODELS[name], 3 * 128 * 256)
    assert (found["codes"], found["scales"]) == (0, 0), found["first"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_reference_agrees(name: str) -> None:
    def by_reference(_: str, x: Any) -> Any:
        parts = exact_quantize.quantize(x, RECIPES[name].format)
        # As the fallback without the extension module returns it.
        data = gpucast.PackedArray.pack(parts.data) if RECIPES[name].format.element.packed else parts.data
        Quantized(data, parts.scales, RECIPES[name].format, None, parts.global_scale, gpucast.dtype("FLOAT"), 1)
        return parts.data, parts.scales, 1 if parts.global_scale is None else parts.global_scale

    kind = np.float32 if "FLOAT" in RECIPES[name].sources else ml_dtypes.bfloat16
    x = recipes.hard(kind, np.random.default_rng(5), wide=True, rows=16 if "128x128" not in name else 128)
    x[0] = -0.0
    x[1] *= 0
    assert recipes.differing(recipes.ours(name, x), by_reference(name, x)) == (0, 0, "")


def _library(package: str) -> dict[str, recipe_packages.Reference]:
    pytest.importorskip("torch")
    pytest.importorskip(package)
    return dict(getattr(recipe_packages, f"_{package}")())


@pytest.mark.peers
@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.held == "package"])
def test_installed_libraries_themselves(name: str) -> None:
    package, version = RECIPES[name].library.replace("-", "_"), RECIPES[name].version
    references = _library(package)
    if name not in references:
        pytest.skip(
            f"held against {package} {version}; {metadata.version(package)} has other arithmetic here. The formula of "
            f"{version} runs in test_codes_and_scales_are_those_of_the_library[{name}]"
        )
    found = recipes.compared(name, references[name], 1)
    assert (found["codes"], found["scales"]) == (0, 0), found["first"]


@pytest.mark.parametrize(("name", "kind", "transpose"), ON_DEVICE)
def test_devices_have_the_same_bits(name: str, kind: Any, transpose: Any) -> None:
    rng = np.random.default_rng(11)
    with host_driver.installed(host_driver.HostDriver()):
        for wide in (True, False):
            x = recipes.hard(kind, rng, wide)
            x[3, 5] = np.nan
            x[4, 5] = ml_dtypes.finfo(kind).max
            on_device = gpucast.cast(x, gpucast.dtype(kind), device="cuda:0")
            found = [gpucast.quantize(one, name, transpose=transpose) for one in (on_device, x)]
            for got, expected in zip(*(q if isinstance(q, tuple) else (q,) for q in found), strict=True):
                pair = (recipes._as_found(q) for q in (got.get(), expected))
                assert recipes.differing(*pair) == (0, 0, "")


@pytest.mark.parametrize("scale", [0.37, 0.375, 2.0**-70])
def test_given_scales_on_devices_need_not_be_numbers_of_the_type(scale: float) -> None:
    x = recipes.hard(np.float16, np.random.default_rng(12), wide=True)
    with host_driver.installed(host_driver.HostDriver()):
        on_device = gpucast.cast(x, "FLOAT16", device="cuda:0")
        found = [gpucast.quantize(one, "compressed-tensors-fp8", scale=np.float32(scale)) for one in (on_device, x)]
        assert recipes.differing(*(recipes._as_found(q) for q in (found[0].get(), found[1]))) == (0, 0, "")


def test_a_result_is_written_again() -> None:
    x = recipes.hard(np.float32, np.random.default_rng(7), wide=False)
    for name in ("te-nvfp4", "tilekernels"):
        q = gpucast.quantize(x, name)
        again = gpucast.quantize(x * np.float32(0.5), name)
        assert gpucast.quantize(x, name, out=again) is again
        assert recipes.differing(recipes._as_found(again), recipes._as_found(q)) == (0, 0, "")


def test_given_scales_and_amax() -> None:
    x = recipes.hard(np.float32, np.random.default_rng(9), wide=False)
    q = gpucast.quantize(x, "te-nvfp4")
    top = np.abs(x).max()
    assert recipes.differing(recipes._as_found(gpucast.quantize(x, "te-nvfp4", amax=top)), recipes._as_found(q)) == (
        0,
        0,
        "",
    )
    # The library's own number: 2688 / amax.
    u = gpucast.quantize(x, "te-nvfp4", scale=np.float32(2688) / top)
    assert u.global_scale == q.global_scale
    with pytest.raises(ValueError, match="more than the scale"):
        gpucast.quantize(x, "tilekernels", scale=1.0)


def test_a_file_keeps_the_steps(tmp_path: Path) -> None:
    q = gpucast.quantize(np.ones((4, 128), np.float32), "deepgemm")
    gpucast.save(tmp_path / "q.safetensors", {"q": q})
    again = gpucast.load(tmp_path / "q.safetensors")["q"]
    assert again.format == q.format and again.format.steps is not None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("deepgem-ue8m0", "no recipe; did you mean one of deepgemm-ue8m0"),
        ("te-nvfp5", "did you mean one of te-nvfp4"),
        ("deepgemm-fp4", "did you mean one of deepgemm"),
    ],
)
def test_unknown_recipes_name_the_nearest(asked: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpucast.quantize(np.ones((4, 128), np.float32), asked)


def test_types_for_which_a_recipe_was_not_held() -> None:
    with pytest.raises(TypeError, match="deepgemm is for arrays of FLOAT, FLOAT16, BFLOAT16, not of DOUBLE"):
        gpucast.quantize(np.ones((4, 128)), "deepgemm")
    with pytest.raises(TypeError, match="compressed-tensors-mxfp4 is for arrays of FLOAT, BFLOAT16"):
        gpucast.quantize(np.ones((4, 128), np.float16), "compressed-tensors-mxfp4")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"scale": "a/x"}, "has x; expected a u"),
        ({"scale": "__import__('os')"}, "Steps: .*; expected names, numbers"),
        ({"scale": "a**2"}, "Steps: .*; expected names, numbers"),
        ({"code": "s/x"}, "must be x\\*f or x/f"),
    ],
)
def test_formulas_are_checked(columns: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Steps(**({"scale": "a/448", "code": "x*(1/s)"} | columns))


@pytest.mark.parametrize("formula", ["x*True", "min(x,1,key=2)"])
def test_what_is_no_formula(formula: str) -> None:
    with pytest.raises(ValueError, match="formula|expected"):
        Steps("a", formula)


def test_steps_of_ones_own() -> None:
    steps = Steps("max(a,1e-12)/448", "x/s")
    mine = Format("mine", "FLOAT8E4M3FN", "FLOAT", (64,), "amax", steps=steps)  # type: ignore[arg-type]
    q = gpucast.quantize(np.full((2, 64), 3, np.float32), mine)
    assert (q.scales == np.float32(3) / np.float32(448)).all() and (q.dequantize() == 3).all()
    with pytest.raises(ValueError, match="only where, there is a global scale"):
        Format("mine", "FLOAT8E4M3FN", "FLOAT", (64,), "amax", steps=Steps("a/448", "x/s", "A"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'floor' does not go with steps"):
        Format("mine", "FLOAT8E4M3FN", "FLOAT8E8M0", (32,), "floor", steps=steps)  # type: ignore[arg-type]


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    assert "deepgemm-ue8m0" in capsys.readouterr().out
    assert main(["recipes", "--json"]) == 0
    rows = {row["recipe"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == RECIPES.keys() and rows["te-mxfp8"]["scales"] == "a*(1/448)"


_ROWS = [
    (cells[0].strip("`"), kind, name.strip("`"))
    for line in (Path(__file__).parents[2] / "docs/which-recipe.md").read_text("utf-8").splitlines()
    if line.startswith("| `") and "Config(" in line
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    for kind, name in zip(("bfloat16", "float32"), cells[1:], strict=True)
]
assert len(_ROWS) >= 18, "the page has a table that this file does not read"


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("config", "kind", "recipe"), _ROWS)
def test_the_recipes_of_torchao_configs_are_those_of_the_page(config: str, kind: str, recipe: str) -> None:
    torch = pytest.importorskip("torch")
    torchao = pytest.importorskip("torchao")
    from torchao.prototype.mx_formats import inference_workflow
    from torchao.quantization.granularity import PerGroup

    known = {**vars(torchao.quantization), **vars(inference_workflow), "torch": torch, "PerGroup": PerGroup}
    x = gpucast.cast(np.random.default_rng(6).standard_normal((256, 256)).astype(np.float32), kind)
    layer = torch.nn.Sequential(torch.nn.Linear(256, 256, bias=False, dtype=getattr(torch, kind)))
    layer[0].weight.data = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, kind))
    if not recipe.startswith("torchao"):
        recipe = "torchao-int8-row"
    try:
        torchao.quantization.quantize_(layer, eval(config, known))
    except AssertionError as error:
        assert "bf16" in str(error) and (config[:2], kind) == ("MX", "float32")
        return
    raw = layer[0].weight.qdata.view(torch.uint8).numpy()
    codes = gpucast.quantize(x, recipe).data
    codes = codes.get().view(np.uint8) if isinstance(codes, gpucast.PackedArray) else codes.view(np.uint8)
    if raw.shape != codes.shape:
        raw = np.stack([raw & 15, raw >> 4], -1).reshape(codes.shape)
        codes = codes & 15
    elif "int4" in recipe:
        raw, codes = raw & 15, codes & 15
    is_none = config.startswith("Int8") and kind == "bfloat16"
    assert is_none != np.array_equal(raw, codes)


def test_scales_without_a_zero_take_no_formula_for_it() -> None:
    """The smallest FLOAT8E8M0 has the code 0 and is none."""
    for scale, rule, replaces in (("FLOAT8E8M0", "up", 0), ("FLOAT8E4M3FN", "amax", 1)):
        steps = Steps("a / 448", "x / s", zero="1")
        format = Format(f"{scale} with zero", "FLOAT8E4M3FN", scale, (32,), rule, False, False, steps)
        assert f"has_zero = {replaces} }};" in step_functions(format, dtype("FLOAT"))[0]
        x = np.zeros((1, 32), np.float32)
        assert gpucast.quantize(x, format).scales.astype(np.float32) == (1 if replaces else 2.0**-127)


def test_a_zero_of_either_sign_is_replaced() -> None:
    """On the host and on devices: a formula of negative numbers gives -0, and so does one that is too small."""
    x = np.linspace(-3, 3, 128, dtype=np.float32).reshape(4, 32)
    x[1], x[2] = 0, x[2] * np.float32(1e-12)
    for scale in ("FLOAT", "FLOAT8E4M3FN"):
        steps = Steps("-a / 6", "x / s", zero="1")
        format = Format(f"{scale} below zero", "FLOAT8E4M3FN", scale, (32,), "amax", steps=steps)  # type: ignore[arg-type]
        expected = exact_quantize.quantize(x, format)
        assert expected.scales.astype(np.float32)[1, 0] == 1
        compare(gpucast.quantize(x, format), expected, scale)
        with host_driver.installed(host_driver.HostDriver()):
            compare(gpucast.quantize(x, format, device="cuda"), expected, scale)


@pytest.mark.parametrize("scale", ["FLOAT", "FLOAT8E8M0", "FLOAT8E4M3FN"])
def test_a_formula_that_is_nan_for_zeros(scale: str) -> None:
    """The reference, the host and devices have a scale of NaN, and codes of NaN."""
    x = np.linspace(-3, 3, 128, dtype=np.float32).reshape(4, 32)
    x[1] = 0
    steps = Steps("a / a * 2", "x / s", zero="")
    rule = "up" if scale == "FLOAT8E8M0" else "amax"
    format = Format(f"{scale} over itself", "FLOAT8E4M3FN", scale, (32,), rule, steps=steps)  # type: ignore[arg-type]
    expected = exact_quantize.quantize(x, format)
    assert np.isnan(expected.scales.astype(np.float32)).ravel().tolist() == [False, True, False, False]
    compare(gpucast.quantize(x, format), expected, scale)
    with host_driver.installed(host_driver.HostDriver()):
        compare(gpucast.quantize(x, format, device="cuda"), expected, scale)


def test_given_scales_that_stand_for_several_rows_lie_in_their_order() -> None:
    """The result is an `out` for the next call."""
    x, scale = np.linspace(-3, 3, 256, dtype=np.float32).reshape(4, 64), np.array([0.5, 0.25], np.float32)
    steps = Steps("a / 448", "x / s")
    format = Format("mine", "FLOAT8E4M3FN", "FLOAT", (32,), "amax", steps=steps)  # type: ignore[arg-type]
    out = gpucast.quantize(x, format, scale=scale)
    assert gpucast.quantize(x, format, scale=scale, out=out) is out
    compare(out, exact_quantize.quantize(x, format, scale=scale))
