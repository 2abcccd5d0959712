# SPDX-License-Identifier: Apache-2.0
"""Casts one tensor without scales. Several threads each read, cast, count and write parts of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpucast import files
from gpucast.arrays.packed import PackedArray
from gpucast.casting.cast import cast
from gpucast.casting.cast_report import cast_report, result_report
from gpucast.casting.engine import Engine
from gpucast.casting.loss_counts import CastReport
from gpucast.convert.losses import counts
from gpucast.convert.losses.statistics import Errors, Statistics, runs
from gpucast.convert.scales.request import Request
from gpucast.convert.streaming.checksums import ChecksumWriter, PositionedWriter
from gpucast.convert.streaming.pieces import keywords, moved
from gpucast.convert.streaming.prefetch import Prefetcher
from gpucast.core.dtypes import DType, dtype
from gpucast.core.errors import printable
from gpucast.core.rule import CastRule, Options, resolve
from gpucast.files import Spec, Tensor
from gpucast.files.tensor import FileError, LoadedTensor, NDArray, StoredTensor, Window
from gpucast.host.files import CastStats, CountedCast, FilePosition, counted

#: Elements that are read, cast, counted and written while they are in the second-level cache.
_BLOCK = 1 << 17


@dataclass(frozen=True)
class Casting:
    """A cast of a tensor to `dtype`. Errors name `path`."""

    tensor: Tensor
    dtype: DType
    request: Request
    prefetcher: Prefetcher
    path: str

    def write(self, writer: ChecksumWriter, spec: Spec, observe: Callable[[int, Statistics], None]) -> None:
        """Write the whole tensor. The observer hears how many elements are done and what they lost."""
        positioned = writer.positioned(spec)
        # Closed, so that no thread goes on after an error.
        with closing(self._made(positioned, observe)) as made:
            if positioned is None:
                writer.write(spec, made)
                return
            for _ in made:
                pass
            positioned.done()

    def _made(
        self, positioned: PositionedWriter | None, observe: Callable[[int, Statistics], None]
    ) -> Generator[NDArray, None, None]:
        """The cast parts, in order, that still have to be written."""

        def work(part: tuple[int, Tensor]) -> tuple[int, Statistics, list[NDArray]]:
            return self._part(*part, positioned)

        try:
            with closing(self.prefetcher.in_order(work, self._parts())) as made:
                for size, statistics, casts in made:
                    observe(size, statistics)
                    yield from casts
        except FileError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(printable(f"{self.path}: tensor {self.tensor.name!r}: {error}")) from None

    def _parts(self) -> Iterator[tuple[int, Tensor]]:
        """The parts of the tensor, each with the index of its first element."""
        start, tensor = 0, self.tensor
        assert tensor.dtype is not None
        if tensor.dtype.family == "string":
            # Text is cast whole, so that an error names the right index.
            whole = tensor.read()
            yield 0, LoadedTensor(tensor.name, tensor.dtype, whole.shape, tensor.kind, whole.nbytes, whole)
            return
        for part in tensor.parts():
            yield start, part
            start += part.size

    def _part(
        self, start: int, part: Tensor, positioned: PositionedWriter | None
    ) -> tuple[int, Statistics, list[NDArray]]:
        """Cast a part. Returns its elements, what they lost, and the result if it is not written yet."""
        statistics, casts = Statistics(errors=Errors.of(self.request.detail)), list[NDArray]()
        if positioned is not None and (passed := self._passed_on(start, part, positioned)) is not None:
            statistics.report, stats = passed
            if stats.largest > self.dtype.max_code:
                for x in part.chunks(self._limit(part)):
                    statistics.add_special(*counts.special(self._cast(x, start)[0], self.dtype))
            for run in runs(self.tensor.size, start, part.size):
                some = part.part(run.start, run.stop - run.start)
                assert some is not None, "the file was read at a place"
                x = some.read()
                self._examine(statistics, x, self._cast(x, start + run.start)[0])
            return part.size, statistics, casts
        for x in part.chunks(self._limit(part)):
            y, found = self._cast(x, start)
            if self.request.seed is not None:
                statistics.report += result_report(x, y, self._rule)
            else:
                statistics.report += counts.of_cast(x, y, self._rule.src, self.dtype, self.request.attributes, found)
            if found is None or found.largest > self.dtype.max_code:
                statistics.add_special(*counts.special(y, self.dtype))
            for run in runs(self.tensor.size, start, x.size):
                self._examine(statistics, x[run], y[run])
            if positioned is None:
                casts.append(y)
            else:
                positioned.write(start, y)
            start += x.size
        return part.size, statistics, casts

    def _examine(self, statistics: Statistics, x: NDArray, y: NDArray) -> None:
        if self.request.seed is not None:
            report = result_report(x, y, self._rule)
        else:
            report = cast_report(x, self.dtype, **self.request.attributes)
        statistics.examine(x, y, report.max_relative_error)

    def _passed_on(self, start: int, part: Tensor, positioned: PositionedWriter) -> tuple[CastReport, CastStats] | None:
        """Cast a part from file to file in one call and return what was lost. None if that is impossible, or counts
        nothing.
        """
        rule, cast = self._rule, self._counted()
        if cast is None or not isinstance(part, StoredTensor):
            return None
        stream, here = part.open(), positioned.place(start)
        as_they_lie = part.element is not None and part.element.isnative
        # Sums are of whole words.
        if not isinstance(stream, Window) or not as_they_lie or rule.dst.packed or rule.dst.nbytes(start) % 8:
            return None
        done = cast.file(FilePosition.of(rule.src, *stream.position()), FilePosition.of(rule.dst, *here), part.size)
        if done is None:
            return None
        found, total = done
        lost = counts.of_stats(found, part.size, rule.src, rule.dst, self.request.attributes)
        if lost is not None:
            positioned.note(rule.dst.nbytes(part.size), total)
            return lost, found
        return None

    def _counted(self) -> CountedCast | None:
        """The cast that counts losses, on the host; None where there is none."""
        return self._engine.pick(counted(self._rule), None) if self.request.seed is None else None

    def _limit(self, part: Tensor) -> int:
        """The bytes of a part that are cast at a time; all of them where that is quicker."""
        quick = self.request.seed is None and self._rule.src.family == self.dtype.family == "float"
        # A limit that is no whole group of 4 elements would be cut down to one.
        whole = part.size + 4
        return (self._engine.pick(_BLOCK, whole) if quick else whole) * part.itemsize

    def _cast(self, x: NDArray, start: int) -> tuple[NDArray, CastStats | None]:
        """Cast flat elements. `start` is the index of the first one."""
        counting = self._counted()
        if counting is not None:
            y = np.empty(x.shape, self.dtype.numpy)
            return y, counting(x.view(self._rule.src.code_numpy), y.view(self.dtype.code_numpy))
        random = keywords(moved(self.request.random(self.tensor.name), start))
        return _cast_on(self._engine, x, self.dtype, {**self.request.attributes, **random}).reshape(-1), None

    @cached_property
    def _rule(self) -> CastRule:
        assert self.tensor.dtype is not None
        return resolve(self.tensor.dtype, self.dtype, Options(**self.request.attributes))

    @property
    def _engine(self) -> Engine:
        return self.prefetcher.engine


def _cast_on(engine: Engine, x: NDArray, dst: DType, attributes: dict[str, Any]) -> NDArray:
    """``cast(x, dst, **attributes)`` by that engine: x moves there first (`gpucast.cast` would narrow it before). Text
    is cast on the host.
    """
    src = dtype(x.dtype)
    if "string" not in (src.family, dst.family):
        x = engine.take(PackedArray.pack(x) if src.packed and engine.packs else x)
    return files.on_host(cast(x, dst, **attributes))
