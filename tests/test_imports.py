# SPDX-License-Identifier: Apache-2.0
"""Who may import whom, and what `import gpucast` costs."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpucast

PACKAGE = Path(gpucast.__file__).parent

#: The folders of the package: each imports from the rows above it alone. docs/architecture.py draws them.
CASTER = (
    ("core",),
    ("reference", "arrays"),
    ("kernel",),
    ("host",),
    ("casting",),
    ("libraries", "files"),
)
#: What stands on the caster, which knows none of it.
EXTENSIONS = (
    ("quantization", "onnx", "user_kernels"),
    ("mixed",),
    ("convert", "parity", "warmup"),
    ("cli",),
)
LAYERS = (*CASTER, *EXTENSIONS)
#: Those of `convert`, in the same way.
CONVERT = ("streaming", "losses", "scales", "planning", "difference", "running", "reporting")
#: For users alone: names that stay where modules have moved. Nothing inside imports them, nor the package itself.
PUBLIC = {
    "gpucast", "gpucast.__main__", "gpucast.dtypes", "gpucast.device", "gpucast.layers", "gpucast.interop",
    "gpucast.quantization.reference",
    *(f"gpucast.interop.{path.stem}" for path in (PACKAGE / "interop").glob("[a-z]*.py")),
}  # fmt: skip

#: The extension module, which imports nothing of ours.
EXTENSION = "gpucast._host"
#: Folders that must not see each other even through a third: what they say of a cast is evidence for one another.
STRANGERS = [
    ("reference", "host"), ("reference", "kernel"), ("kernel", "reference"),
    ("quantization.exact_quantize", "kernel"), ("quantization.exact_hadamard", "kernel"),
    ("kernel", "quantization.exact_quantize"),
]  # fmt: skip

#: Packages that load their modules when they are first used (`gpucast.core.packages`): the seam to GPUs, text, and the
#: reference.
SEAMS = {
    "gpucast.kernel", "gpucast.casting", "gpucast.host", "gpucast.reference", "gpucast.quantization.cuda",
    "gpucast.mixed.cuda", "gpucast.user_kernels",
}  # fmt: skip

#: Packages that may be imported inside functions: they are optional, or not for every system.
OPTIONAL = {"bitwuzla", "cupy", "cupy_backends", "distributed", "onnx", "torch", "tqdm"}
#: The other imports inside functions, and why.
INSIDE = {
    ("core.extension", "_host"): "the extension module, which may be missing",
    ("host.build", "numpy"): "its headers, which only a build needs",
    ("host.hatch_hook", "host.build"): "found in the folder that is being installed",
    ("core.errors", "difflib"): "slow, and needed for messages alone",
    ("quantization", "quantization.hadamard_torch"): "loaded when a tensor has come",
    ("mixed", "mixed.fake_torch"): "the same",
    ("mixed", "mixed.fake_jax"): "loaded when an array of JAX has come",
    ("kernel.nvrtc_search", "importlib.metadata"): "the same",
    ("warmup.compile_ahead", "concurrent.futures"): "`import gpucast` loads it, and stays quick without it",
    ("warmup.compile_ahead", "kernel.compiler"): "the same; no cast on the host needs a compiler",
    ("warmup.compile_ahead", "kernel.nvidia"): "the same",
    ("warmup.compile_ahead", "warmup.calls"): "the same; it calls quantization and mixed precision",
    ("warmup.compile_ahead", "warmup.dry_run"): "the same; it needs the text of kernels",
    ("warmup.compile_ahead", "warmup.request"): "the same",
    ("kernel.batch_kernel", "hashlib"): "slow, and needed for names of very many casts",
    ("cli.fold", "onnx.backend"): "it imports onnx, which is optional",
    ("parity.self_test", "parity.backends"): "slow to import, and of use only where casts can run on a GPU",
    ("parity.self_test", "parity.cases"): "the same",
    ("parity.self_test", "parity.compare"): "the same",
    ("gpucast", "quantization.quantized_files"): "the table of objects in files: loaded when a file has one",
    ("gpucast", "libraries.cuda_array"): "the table of other libraries: loaded when an array of theirs has come",
    ("gpucast", "libraries.dask"): "the same",
    ("gpucast", "libraries.dlpack"): "the same",
    ("gpucast", "libraries.jax"): "the same",
    ("gpucast", "libraries.torch"): "the same",
}


def _modules() -> dict[str, Path]:
    named = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("gpucast", *path.relative_to(PACKAGE).with_suffix("").parts)
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


MODULES = _modules()


def _targets(node: ast.AST) -> list[str]:
    """The full names of what a statement imports: modules where they are ours, or else what is named."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module is not None, "imports are absolute"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in MODULES or name == EXTENSION else node.module for name in names]
    return []


def _imports(module: str) -> set[str]:
    """The modules of ours that a module imports or, at a seam, uses: anywhere in its text, for types alone, too."""
    if module in SEAMS:
        return {"gpucast.core.packages"}
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found: set[str] = set()
    seams: dict[str, str] = {}
    for node in ast.walk(tree):
        found.update(name for name in _targets(node) if name in MODULES)
        if isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            seams |= {local: name for local, name in names.items() if name in SEAMS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in seams:
            used = f"{seams[node.value.id]}.{node.attr}"
            found.update({used} & MODULES.keys())
    return found - {module}


@functools.cache
def imports() -> dict[str, set[str]]:
    return {module: _imports(module) for module in MODULES}


def _short(module: str) -> str:
    return module.removeprefix("gpucast.")


def _edges() -> Iterator[tuple[str, str]]:
    """Each import inside the package, as names without "gpucast."."""
    for module, found in imports().items():
        if module not in PUBLIC:
            yield from ((_short(module), _short(name)) for name in found)


def _rank(module: str) -> int:
    folder = module.split(".", maxsplit=1)[0]
    return next(rank for rank, row in enumerate(LAYERS) if folder in row)


def _is_above(one: str, other: str) -> bool:
    """Whether the folder of a module stands in a row above another's, or is the same folder."""
    return _rank(one) < _rank(other) or one.split(".", maxsplit=1)[0] == other.split(".", maxsplit=1)[0]


def _reached(module: str) -> set[str]:
    seen, todo = set(), [module]
    while todo:
        one = todo.pop()
        for name in imports()[one] - seen:
            seen.add(name)
            todo.append(name)
    return seen


def test_the_top_holds_folders_and_public_names_alone() -> None:
    folders = {folder for row in LAYERS for folder in row}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == folders | {"interop"}
    top = {f"gpucast.{path.stem}" for path in PACKAGE.glob("*.py")} - {"gpucast.__init__"}
    assert top == {name for name in PUBLIC if name.count(".") == 1} - {"gpucast.interop"}
    for name in PUBLIC - {"gpucast"}:
        assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) < 20, f"{name} only hands names on"


def test_nothing_inside_imports_what_is_for_users() -> None:
    assert [edge for edge in _edges() if edge[1] in {_short(name) for name in PUBLIC}] == []


def test_imports_point_up_the_list() -> None:
    assert {(one, other) for one, other in _edges() if not _is_above(other, one)} == set()


def test_imports_inside_convert_point_up_their_list() -> None:
    ranks = {name: rank for rank, name in enumerate(CONVERT)}
    for one, other in _edges():
        if one.startswith("convert.") and other.startswith("convert."):
            assert ranks[other.split(".")[1]] <= ranks[one.split(".")[1]], (one, other)


def test_there_is_no_circle() -> None:
    """Takes away, again and again, modules that import none of those that are left."""
    left = {_short(module): set() for module in MODULES if module not in PUBLIC}
    for one, other in _edges():
        left[one].add(other)
    while free := {module for module, found in left.items() if not found & left.keys()}:
        left = {module: found for module, found in left.items() if module not in free}
    assert left == {}


@pytest.mark.parametrize(("one", "other"), STRANGERS)
def test_unlike_implementations_do_not_meet(one: str, other: str) -> None:
    for module in MODULES:
        if f"{module}.".startswith(f"gpucast.{one}.") and module not in PUBLIC:
            seen = {name for name in _reached(module) if f"{name}.".startswith(f"gpucast.{other}.")}
            assert not seen, (module, seen)


def test_imports_stand_at_the_top() -> None:
    """Inside functions stands only what the lists above give a reason for, and every reason is needed."""
    found = set()
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for node in {id(node): node for function in functions for node in ast.walk(function)}.values():
            for name in _targets(node):
                if name.split(".")[0] not in OPTIONAL:
                    found.add((_short(module), _short(name)))
    assert found == INSIDE.keys()


def python(code: str) -> str:
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_import_stays_quick() -> None:
    """What it loads beside NumPy and ml_dtypes, by count: clocks depend on the machine."""
    added = python(
        "import numpy, ml_dtypes, sys; before = {*sys.modules}; import gpucast; print(*{*sys.modules} - before)"
    ).split()
    ours = {name for name in added if name.split(".")[0] == "gpucast"}
    # Those that decide on a cast, and those that serve the second one.
    assert len(ours) <= 48, sorted(ours)
    # Of Python's and NumPy's: Python 3.10 to 3.13 load a few of these in any case, and 3.14 the layouts of structures.
    cheap = {
        "__future__", "copy", "ctypes._layout", "dataclasses", "errno", "numpy._typing._add_docstring", "numpy.typing",
        "signal", "threading",
    }  # fmt: skip
    assert {name for name in added if name not in ours} <= cheap
    later = "casting.cast_report core.strings host.text kernel.host_units reference.exact_cast warmup.request"
    assert ours.isdisjoint(f"gpucast.{name}" for name in later.split())


def test_import_brings_no_optional_package() -> None:
    loaded = python("import gpucast, sys; print(' '.join(sys.modules))").split()
    heavy = (
        "gpucast.kernel.driver gpucast.casting.cuda gpucast.kernel.compiler "
        "gpucast.user_kernels gpucast.quantization gpucast.mixed gpucast.layers gpucast.libraries gpucast.onnx "
        "gpucast.interop "
        "gpucast.cli zlib cupy torch jax onnx pyarrow fastnumbers tqdm argparse subprocess"
    )
    assert "gpucast" in loaded
    assert set(heavy.split()).isdisjoint(loaded)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("dask", "dask"), ("jax", "jax"), ("mdf", "modeci_mdf"), ("numba", "numba"), ("onnx", "onnx"),
        ("ort", "onnxruntime"), ("torch", "torch"), ("triton", "triton"),
    ],
)  # fmt: skip
def test_a_public_module_without_its_package_says_what_to_install(name: str, package: str) -> None:
    assert {path.stem for path in (PACKAGE / "interop").glob("[a-z]*.py")} == {
        "dask", "jax", "mdf", "numba", "onnx", "ort", "torch", "triton",
    }  # fmt: skip
    said = python(
        f"import sys; sys.modules[{package!r}] = None\n"
        f"try: import gpucast.interop.{name}\nexcept ImportError as error: print(error)"
    )
    assert said.startswith(f"gpucast.interop.{name} needs ") and "pip install " in said
