# SPDX-License-Identifier: Apache-2.0
"""Damaged files of every format, read and converted with little memory: a program of its own.

Reads cases (JSON) from stdin, each {"kind", "begin", "end"}: files of that kind with the damage of those seeds. A fork
takes each case, with bounds on its memory and its processor time. Writes for each how many files were read, how many
refused, how many of those read were as another library reads them, and what went wrong.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import gpucast
from fuzz import forks, good_files, mutators, other_readers
from gpucast import cli, files, reference

#: Bytes by which reading a damaged file of a few KiB may make the process grow.
_GROWTH = 64 << 20
#: A bound on address space, so that what breaks the other bound does not break the machine; seconds of a processor,
#: so that a file which is read for ever ends.
_SPACE, _SECONDS = 4 << 30, 300


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def loaded(path: str) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a file; without those of types that Cast does not take, which are copied."""
    with files.TensorFile(path) as file:
        return {tensor.name: tensor.read() for tensor in file.tensors if tensor.dtype is not None}


def half(name: str, before: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any] | None:
    """What a tensor becomes that is cast to FLOAT16, by the reference; None for one that is not cast, or
    whose scales are not its rows'."""
    # An initializer of an ONNX model has a new name; the one tensor of an .npy file bears that of the file.
    name = name.removesuffix(".float16")
    x, scale = before[name] if name in before else next(iter(before.values())), before.get(f"{name}_scale")
    if scale is not None:
        rows = scale.astype(np.float64).reshape(-1, 1)
        return reference.cast(x.astype(np.float64) * rows, "FLOAT16") if len(x) == len(rows) else None
    return reference.cast(x, "FLOAT16") if x.dtype.kind == "f" and x.dtype.itemsize > 2 else None


class Batch:
    """The files of a case, in a scratch folder with a secret beside the working folder."""

    def __init__(self, kind: str, scratch: Path) -> None:
        self._kind = kind
        self._scratch = scratch
        scratch.mkdir()
        (scratch / "secret.bin").write_bytes(good_files.SECRET)
        self._made = good_files.make(kind, scratch / "good")
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def one(self, seed: int) -> None:
        """Damage, read and convert the file of a seed; what is wrong is noted."""
        where = self._scratch / "work"
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(self._made.folder, where)
        os.chdir(where)
        damaged = Path(self._made.damaged[seed % len(self._made.damaged)])
        damaged.write_bytes(mutators.mutated(self._kind, seed, damaged.read_bytes()))
        given = {path.name for path in where.iterdir()}
        try:
            source = self._made.source or str(damaged)
            if source != ".":
                self._read(Path(source))
            self._converted(source, given, where)
        except Exception:
            self.problems.append(f"{self._kind} {seed}: {traceback.format_exc(limit=-3)}")
        secret = (self._scratch / "secret.bin").read_bytes()
        if secret != good_files.SECRET or len(list(self._scratch.iterdir())) > 4:
            self.problems.append(f"{self._kind} {seed}: wrote outside the folder")

    def _read(self, path: Path) -> None:
        if path.name.startswith("quantized"):
            with contextlib.suppress(files.FileError):
                gpucast.load(path)["q"].dequantize()
        try:
            tensors = files.load(str(path))
            with files.TensorFile(str(path)) as file:
                for tensor in file.tensors:
                    for _ in tensor.chunks() if tensor.dtype is not None else ():
                        pass
        except files.FileError as error:
            assert str(path) in str(error), error
            self.counts["refused"] += 1
            return
        self.counts["read"] += 1
        assert not any(good_files.SECRET in array.tobytes() for array in tensors.values())
        self.counts["compared"] += other_readers.compared(path, tensors)

    def _converted(self, source: str, given: set[str], where: Path) -> None:
        target = str(self._scratch / "out") if source == "." else "out" + Path(source).suffix
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = cli.main(["convert", source, target, "--to", "FLOAT16", "--allow-loss", "--quiet"])
        text, written = said.getvalue(), {path.name for path in where.iterdir()} - given
        assert code in (0, 1) and text.count("\n") == code, (code, text)
        assert text.rstrip("\n").isprintable(), text
        assert written <= {target, f"{target}.data"} and (code == 0 or not written), (code, written)
        assert os.path.exists(target) == (code == 0)
        self.counts[f"ended with {code}"] += 1
        if code == 0 and source != ".":
            before, after = loaded(source), loaded(target)
            for name, x in after.items():
                wanted = half(name, before)
                if wanted is not None:
                    assert x.tobytes() == wanted.tobytes(), name
                    self.counts["results compared"] += 1
        shutil.rmtree(self._scratch / "out", ignore_errors=True)


def case(kind: str, begin: int, end: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch, mmap.mmap(-1, 8) as place:
        # Everything is imported, and every path gone once, before the memory is measured.
        Batch(kind, Path(scratch).resolve() / "first").one(-1)
        second = Path(scratch).resolve() / "second"
        said, status = forks.forked(lambda: _bounded(kind, range(begin, end), second, place))
        seed = int.from_bytes(place[:], "little")
        os.chdir("/")
    return json.loads(said) if said else {"problems": [f"{kind} {seed}: the process ended with {status}"]}


def _bounded(kind: str, seeds: range, scratch: Path, place: mmap.mmap) -> str:
    """The seeds' counts and problems as JSON, with little memory and time; `place` tells the seed under way."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_SPACE, _SPACE))
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        batch, before = Batch(kind, scratch), peak()
        for seed in seeds:
            place[:] = seed.to_bytes(8, "little")
            batch.one(seed)
            if peak() - before > _GROWTH:
                batch.problems.append(f"{kind} {seed}: took {(peak() - before) >> 20} MiB")
                before = peak()
        return json.dumps({**batch.counts, "memory": peak() - before, "problems": batch.problems})
    except BaseException:
        return json.dumps({"problems": [traceback.format_exc()]})


if __name__ == "__main__":
    json.dump([case(**told) for told in json.load(sys.stdin)], sys.stdout)
