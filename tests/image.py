# SPDX-License-Identifier: Apache-2.0
"""A Dockerfile carried out without Docker, in a folder that stands for the image and has a virtual environment.

Not carried out are USER (the folder is one user's), --mount, --chmod, and lines that begin with apt-get.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import string
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docker.utils.build import exclude_paths
from dockerfile_parse import DockerfileParser
from dockerfile_parse.util import extract_key_values

#: An absolute path in a command.
_PATH = re.compile(r"(?<=[\s=\"])/(?=\w)")
_FLAGS = re.compile(r"(--[\w-]+=\S+\s+)*")


@dataclass(frozen=True)
class Stage:
    """What comes between two FROM lines: (instruction, value) pairs."""

    base: str
    instructions: list[tuple[str, str]]

    def values(self, name: str) -> list[str]:
        return [value for instruction, value in self.instructions if instruction == name]


@dataclass(frozen=True)
class Dockerfile:
    #: The ARG lines before the first stage.
    arguments: list[str]
    stages: dict[str, Stage]

    @classmethod
    def read(cls, path: Path) -> Dockerfile:
        arguments: list[str] = []
        stages: dict[str, Stage] = {}
        current: list[tuple[str, str]] | None = None
        for line in DockerfileParser(fileobj=io.BytesIO(path.read_bytes())).structure:
            name, value = line["instruction"], line["value"]
            if name == "FROM":
                base, _, stage = re.split(r"\s+(as)\s+", value, flags=re.IGNORECASE)
                current = []
                stages[stage] = Stage(base, current)
            elif name == "ARG" and current is None:
                arguments.append(value)
            elif name != "COMMENT":
                assert current is not None, line
                current.append((name, value))
        return cls(arguments, stages)

    def lineage(self, target: str) -> list[Stage]:
        """The stages that a stage is built from, the first first, itself last."""
        stage = self.stages[target]
        return [*(self.lineage(stage.base) if stage.base in self.stages else []), stage]

    def last(self, target: str, name: str) -> str:
        """The value that an instruction has in the end; "" without any. An ENTRYPOINT drops the CMD before it."""
        value = ""
        for instruction, text in (pair for stage in self.lineage(target) for pair in stage.instructions):
            value = text if instruction == name else "" if (instruction, name) == ("ENTRYPOINT", "CMD") else value
        return value

    def command(self, target: str) -> tuple[list[str], list[str]]:
        """ENTRYPOINT and CMD; both are written as lists here."""
        return json.loads(self.last(target, "ENTRYPOINT")), json.loads(self.last(target, "CMD") or "[]")


def context(root: Path) -> set[str]:
    """The files that .dockerignore leaves in a build, as paths from the root with slashes."""
    patterns = [line for line in (root / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    return {path.replace(os.sep, "/") for path in exclude_paths(str(root), patterns) if (root / path).is_file()}


@dataclass
class Image:
    """What became of a target so far."""

    #: The folder that stands for the image, and its Python: a virtual environment.
    root: Path
    python: Path
    #: The folder that is built from, and what --build-arg says.
    source: Path
    arguments: dict[str, str]
    #: Added to the environment of every command.
    extra: dict[str, str] = field(default_factory=dict)
    #: Read instead of what `RUN` says: (what, by what).
    instead: Sequence[tuple[str, str]] = ()
    ran: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workdir = self.root
        self.variables: dict[str, str] = {}
        for folder in ("tmp", "root"):
            (self.root / folder).mkdir(parents=True)

    def build(self, file: Dockerfile, target: str) -> None:
        given = dict(self._assigned(text) for text in file.arguments)
        for stage in file.lineage(target):
            arguments: dict[str, str] = {}
            for name, value in stage.instructions:
                scope = self.variables | arguments
                if name == "ARG":
                    key, default = self._assigned(value)
                    arguments[key] = self.arguments.get(key, default or given.get(key, ""))
                elif name == "ENV":
                    for key, text in extract_key_values(env_replace=True, args={}, envs=scope, instruction_value=value):
                        self.variables[key] = text
                elif name == "WORKDIR":
                    self.workdir = self.inside(value)
                    self.workdir.mkdir(parents=True, exist_ok=True)
                elif name == "COPY":
                    self._copy(value)
                elif name == "RUN":
                    self._run(_FLAGS.sub("", value, count=1), scope)
                else:
                    assert name in ("USER", "ENTRYPOINT", "CMD"), f"{name} is not carried out"

    def inside(self, path: str) -> Path:
        """Where a path of the image lies."""
        return self.root / path[1:] if path.startswith("/") else self.workdir / path

    def environment(self, scope: dict[str, str] | None = None) -> dict[str, str]:
        """The variables of a command in the image; no NVIDIA device is to be seen."""
        variables = {key: str(self.inside(text)) if text.startswith("/") else text
                     for key, text in (self.variables if scope is None else scope).items()}  # fmt: skip
        path = os.pathsep.join([str(self.python / "bin"), os.environ.get("PATH", os.defpath)])
        # uv takes a virtual environment for what it is only if it is told.
        own = {"PATH": path, "VIRTUAL_ENV": str(self.python), "UV_SYSTEM_PYTHON": "0", "CUDA_VISIBLE_DEVICES": ""}
        return {**os.environ, "HOME": str(self.root / "root"), **variables, **self.extra, **own}

    def execute(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A command as it would run in a container."""
        words = [str(self.inside(word)) if word.startswith("/") else word for word in command]
        environment = self.environment()
        program = shutil.which(words[0], path=environment["PATH"])
        assert program is not None, f"{words[0]} is not in the image"
        return subprocess.run(
            [program, *words[1:]], cwd=self.workdir, env=environment, capture_output=True, text=True, check=False
        )

    def _copy(self, value: str) -> None:
        *sources, target = _FLAGS.sub("", value, count=1).split()
        kept = context(self.source)
        for source in sources:
            for name in kept:
                # Of a folder its content is copied; a file keeps its name where the target is a folder.
                inner = name if source == "." else name[len(source) + 1 :] if name.startswith(f"{source}/") else ""
                if name == source:
                    inner = Path(name).name if target.endswith("/") else "."
                if inner:
                    destination = self.inside(target) / inner
                    destination.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(self.source / name, destination)

    def _run(self, text: str, scope: dict[str, str]) -> None:
        if text.startswith("apt-get "):
            return
        for what, by in self.instead:
            text = text.replace(what, by)
        self.ran.append(text)
        text = _PATH.sub(f"{self.root}/", text)
        environment = self.environment(scope)
        done = subprocess.run(
            ["/bin/sh", "-c", text], cwd=self.workdir, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"RUN {text}\n{done.stdout}\n{done.stderr}"

    def _assigned(self, text: str) -> tuple[str, str]:
        """The name and the value of an ARG line."""
        key, _, value = text.partition("=")
        return key, string.Template(value.strip('"')).substitute(self.variables)
