# SPDX-License-Identifier: Apache-2.0
"""Dockerfile, .dockerignore and compose.yaml name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def test_what_is_copied_is_there_and_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = re.findall(r"^COPY (?!.*--from)(?:--\S+ )*(.*) \S+$", TEXT, re.MULTILINE)
    sources = {source for words in copied for source in words.split()} - {"."}
    assert len(sources) > 3 and sources <= kept
    assert all((ROOT / name).exists() for name in kept)


def test_compose_names_what_the_dockerfile_has() -> None:
    stages, arguments = re.findall(r"^FROM .* AS (\w+)$", TEXT, re.M), re.findall(r"^ARG (\w+)", TEXT, re.M)
    for service in yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values():
        assert service["build"]["target"] in stages
        assert set(service["build"]["args"]) <= set(arguments)
    assert len(stages) > 2 and re.findall(r"^USER (?!0)\d+:\d+$", TEXT, re.M)
