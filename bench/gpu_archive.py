# SPDX-License-Identifier: Apache-2.0
"""All results of a run on a GPU in one archive, because some machines return few files; it is complete or absent."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

#: The size that some receivers accept; larger archives give a warning.
LIMIT = 16 << 20


def pack(path: Path, files: Iterable[Path]) -> int:
    """Write the files, without their folders, to a .tar.gz; returns its size. It replaces `path` atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with tarfile.open(new, "w:gz") as archive:
            for file in sorted(files):
                archive.add(file, arcname=file.name, recursive=False)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path.stat().st_size


def unpack(path: Path, folder: Path) -> list[str]:
    """Extract an archive into `folder` without overwriting files; returns the names of its files.

    ValueError, which names the archive, if it is none, or contains what `pack` does not write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if not member.isfile() or Path(member.name).name != member.name:
                    raise ValueError(f"{path}: {member.name} is no plain file of a run")
                target, source = folder / member.name, archive.extractfile(member)
                names.append(member.name)
                if not target.exists() and source is not None:
                    target.write_bytes(source.read())
    except (OSError, tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path}: {error}; expected an archive that bench/gpu.sh wrote") from None
    return names
