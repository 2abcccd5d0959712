# SPDX-License-Identifier: Apache-2.0
"""The extension module (``kernels/host/module.cpp``), for type checkers."""

from collections.abc import Callable
from typing import Any

#: Counts the changes of this interface.
INTERFACE: int
#: The level in use, and all that are built, the best first.
LEVEL: str
LEVELS: tuple[str, ...]
#: The most threads that share a cast.
THREADS: int
#: Bytes of a `gpucast.host.loops.Work`.
WORK_BYTES: int
#: The floating-point modes that all arithmetic here has: to nearest, subnormal numbers kept, no traps.
EXACT_MODES: int

class Plan: ...
class Program: ...

class Kernel:
    def __call__(self, *arguments: Any) -> None: ...

def find(name: str, /) -> int: ...
def call(function: int, arguments: int, /) -> int: ...
def cast(work: bytes, x: Any, src_bits: int, out: Any, dst_bits: int, size: int, /) -> tuple[int, int]: ...
def read_texts(reading: int, texts: Any, start: int, out: Any, least: int, most: int, /) -> int: ...
def write_texts(x: Any, out: Any, /) -> None: ...
def kernel(
    launch: int,
    current: int,
    function: int,
    threads: int,
    elements: int,
    ahead: int,
    nbytes: int,
    offsets: tuple[int, ...],
    device: int,
    stream: Callable[[int], Any],
    failed: Callable[[int, bool], None],
    /,
) -> Kernel: ...
def function(names: tuple[str, ...], defaults: tuple[Any, ...], roles: str, /) -> tuple[Any, Any]: ...
def plan(
    kind: str,
    function: Callable[..., Any] | None,
    empty: Callable[[Any], Any] | None,
    src: Any,
    dst: Any,
    works: bytes | None,
    kernels: dict[Any, Any] | None,
    kernels_by_float: dict[Any, Any] | None,
    library: Any,
    made: Any,
    src_bits: int,
    dst_bits: int,
    /,
) -> Plan: ...
def program(
    launches: tuple[tuple[Callable[..., None], int, bytes, tuple[tuple[int, int, int], ...]], ...],
    given: tuple[tuple[type, tuple[int, ...], Any, int, int], ...],
    reads: int,
    alike: tuple[int, ...],
    device: int,
    /,
) -> Program: ...
def repeat(program: Program, given: list[Any], others: list[int], seed: int, offset: int, number: float, /) -> bool: ...
def quantize(
    how: bytes,
    library: Any,
    x: Any,
    data: Any,
    scales: Any,
    zero_points: Any,
    global_scale: Any,
    scale: float | None,
    amax: float | None,
    seed: int | None,
    offset: int,
    /,
) -> bool: ...
def transform(how: bytes, library: Any, x: Any, out: Any, /) -> bool: ...
def new_part(how: Any, /) -> Any: ...
def pause(whether: bool, /) -> bool: ...
def forget() -> None: ...
def count_plans() -> int: ...
def serve(text: str, kernel: Kernel | None, given: bytes, bits: int, /) -> None: ...
def xla_handlers(load: Callable[[str, bool], object], current: int, /) -> tuple[Any, Any]: ...
def modes() -> int: ...
def set_modes(modes: int, /) -> None: ...
