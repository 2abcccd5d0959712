# SPDX-License-Identifier: Apache-2.0
"""Run an adapter over the tables."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from cast_conformance.arrays import numpy_dtype
from cast_conformance.compare import Case, Table, Verdict
from cast_conformance.conventions import conventions
from cast_conformance.numbers import codes_dtype, shown
from cast_conformance.reader import manifest

Pair = tuple[str, str]


@dataclass
class Result:
    """What a library gave in one mode."""

    system: str
    version: str
    mode: str
    pairs: dict[Pair, Verdict] = field(default_factory=dict)
    refused: dict[Pair, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def wrong(self) -> dict[Pair, Verdict]:
        return {pair: verdict for pair, verdict in self.pairs.items() if verdict.wrong}

    @property
    def title(self) -> str:
        return f"{self.system} ({self.mode})" if self.mode else self.system


def all_pairs() -> list[Pair]:
    rows = manifest()["types"]
    return [(src, dst) for src in rows for dst in rows]


def applies(mode: str, dst: str) -> bool:
    """Whether a destination has the convention that a mode asks for."""
    return not mode or mode in {each.name for each in conventions(manifest()["types"][dst])}


def run(adapter: ModuleType, system: str, modes: Iterable[str], pairs: Iterable[Pair]) -> list[Result]:
    """Cast every input of the pairs in every mode, and compare."""
    results = {mode: Result(system, adapter.version(), mode) for mode in modes}
    for src, dst in pairs:
        chosen = [mode for mode in results if applies(mode, dst)]
        table = Table(src, dst) if chosen else None
        for mode in chosen:
            assert table is not None
            found, start = results[mode], time.perf_counter()
            try:
                # What a library says of its own overflows is no news here.
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    got = adapter.cast(table.input, src, dst, mode)
            except Exception as error:  # Each library has kinds of its own.
                found.refused[src, dst] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                continue
            finally:
                found.seconds += time.perf_counter() - start
            found.pairs[src, dst] = table.verdict(_checked(got, table), mode or None)
    return [*results.values()]


def _checked(got: Any, table: Table) -> Any:
    """The result as the codes that the adapter owes."""
    codes = np.asarray(got)
    wanted = codes_dtype(table.row)
    if codes.dtype != wanted or codes.shape != table.input.shape:
        raise TypeError(
            f"the adapter gave {codes.dtype} {codes.shape} for {table.dst}; expected {wanted} {table.input.shape}"
        )
    return codes


def one_case(adapter: ModuleType, case: str, mode: str) -> Iterator[str]:
    """Cast one code, ``FLOAT:FLOAT16:0x3f801000``, and say what comes out and what conventions have."""
    src, dst, text = case.split(":")
    table, code = Table(src, dst), int(text, 0)
    got = int(adapter.cast(np.array([code], codes_dtype(manifest()["types"][src])), src, dst, mode)[0])
    at = np.flatnonzero(table.input == code)
    row = table.row
    yield f"{src} {shown(code, manifest()['types'][src])} to {dst} gives {shown(got, row)}"
    for each in conventions(row) if at.size else ():
        yield f"  {each.name}: {shown(int(table.expected(each)[at[0]]), row)}"


def reproduction(system: str, lines: str | None, names: dict[str, str] | None, case: Case) -> str:
    """An adapter's lines for a case, or the command that makes it."""
    if lines is None or (names is not None and not {case.src, case.dst} <= names.keys()):
        return f"python -m cast_conformance {system} --case {case.src}:{case.dst}:{case.code:#x}"
    names = names or {name: numpy_dtype(name).name for name in (case.src, case.dst)}
    rows = manifest()["types"]
    uint, dst_uint = (codes_dtype(rows[name]).name for name in (case.src, case.dst))
    return lines.format(code=hex(case.code), src=names[case.src], dst=names[case.dst], uint=uint, dst_uint=dst_uint)
