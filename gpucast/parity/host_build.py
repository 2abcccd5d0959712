# SPDX-License-Identifier: Apache-2.0
"""The kernels compiled as host code, for the parity harness and the tests; `gpucast.cast` never uses them.

A C++ compiler compiles the text of `gpucast.codegen.cast_kernel` unchanged, with a shim that provides what is built
into CUDA. A launch is a loop over blocks and threads. So rules, tiles, tails and launch geometry are tested without
a GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gpucast.codegen.batch_kernel import BatchSource
from gpucast.codegen.cast_kernel import KernelSource, Shape, host_section, join, kernel_source
from gpucast.compile import cxx
from gpucast.core.rule import CastRule

#: The kernels of one translation unit, and the compilers that run at a time.
_UNIT, _PROCESSES = 40, 2

#: How threads and barriers become loops. A block's threads run one after the other: all of them up to the first
#: barrier, then all anew up to the second, and so on. So a kernel writes each place in shared memory between the same
#: two barriers only: nothing takes another's place.
_THREADS = """
namespace {
unsigned phase, passed;
bool at_barrier;
unsigned long long misaligned;
void check_aligned(const void* pointer, unsigned bytes) { misaligned += (unsigned long long)pointer % bytes != 0; }
}
#define GPUCAST_CHECK_ALIGNED(pointer, bytes) check_aligned(pointer, bytes)
#define GPUCAST_OVERLAY struct
#define GPUCAST_BARRIER() if (passed++ == phase) { at_barrier = true; return; }
// Before the barrier each thread leaves what it has found, for the turns of a loop at places of their own.
#define GPUCAST_MERGE(LANES, STATS) \\
    static decltype(STATS) stats_by[8][1024]; \\
    auto& stats_of_turn = stats_by[passed % 8]; \\
    stats_of_turn[threadIdx.x] = STATS; \\
    GPUCAST_BARRIER() \\
    for (unsigned i = threadIdx.x / LANES * LANES, end = i + LANES; i < end; ++i) STATS.merge(stats_of_turn[i]);
"""

#: One launch; the result is the number of misaligned accesses, on which a GPU would have stopped.
_LAUNCH = """
extern "C" unsigned long long launch_{name}({parameters}, unsigned first_block, unsigned blocks) {{
    misaligned = 0;
    for (blockIdx.x = first_block; blockIdx.x < blocks; ++blockIdx.x) {{
        at_barrier = true;
        for (phase = 0; at_barrier; ++phase) {{
            at_barrier = false;
            for (threadIdx.x = 0; threadIdx.x < {threads}; ++threadIdx.x) {{
                passed = 0;
                {name}({arguments});
            }}
        }}
    }}
    return misaligned;
}}
"""
_PARAMETERS = "const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n"
_ARGUMENTS = "src, src_bit, dst, n"


def compiler() -> list[str]:
    """The command of a C++17 compiler. CompilerMissing where there is none."""
    return cxx.find("hostbuild")


def flags(optimize: bool = True, sanitize: bool = False) -> list[str]:
    """The compiler's options. Warnings of g++ and clang++ are errors, because they deserve a look."""
    chosen = ["-std=c++17", "-O2" if optimize else "-O0", "-fPIC", "-shared"]
    # The kernels read bytes as words, which is common in CUDA code.
    chosen += ["-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function"]
    if sanitize:
        return [*chosen, "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    # By default ziglang's compiler enables sanitizers, and builds their library first, which takes minutes.
    return [*chosen, "-fno-sanitize=all"]


@dataclass(frozen=True)
class Arguments:
    """The arguments of a launch: the addresses of the first elements, and the number of elements."""

    src: int
    dst: int
    n: int
    #: The bit of its first byte at which a packed source begins, 0 to 7.
    src_bit: int = 0
    #: The bytes of the argument `KernelSource.more`, if the kernel has it.
    more: bytes | None = None


class HostKernels:
    """Compiled kernels, found by name, or by the rule, shape and packing of their source."""

    def __init__(self, sources: Sequence[KernelSource], libraries: Sequence[ctypes.CDLL]) -> None:
        self._kernels: dict[str, tuple[KernelSource, Any]] = {}
        self._names: dict[tuple[CastRule, Shape, bool], str] = {}
        for source, library in zip(sources, libraries, strict=True):
            function = library[f"launch_{source.name}"]
            function.restype = ctypes.c_ulonglong
            self._kernels[source.name] = (source, function)
            self._names[source.rule, source.shape, source.unpacked] = source.name

    def run(
        self,
        rule: CastRule,
        arguments: Arguments,
        shape: Shape = "contiguous",
        *,
        unpacked: bool = False,
        first_block: int = 0,
        blocks: int | None = None,
    ) -> None:
        """Launch the kernel of a rule and a shape; the other arguments as for `launch`."""
        self.launch(self._names[rule, shape, unpacked], arguments, first_block=first_block, blocks=blocks)

    def launch(self, name: str, arguments: Arguments, *, first_block: int = 0, blocks: int | None = None) -> None:
        """Launch a kernel by name, because a rule may have several fused kernels: `blocks` of its blocks (None: all)
        from `first_block` on.

        RuntimeError for a misaligned access, at which a GPU would stop.
        """
        source, function = self._kernels[name]
        src, dst, n = arguments.src, arguments.dst, arguments.n
        end = source.blocks(n, dst) if blocks is None else first_block + blocks
        more = () if arguments.more is None else (arguments.more,)
        misaligned = function(
            ctypes.c_void_p(src), ctypes.c_uint(arguments.src_bit), ctypes.c_void_p(dst), ctypes.c_longlong(n), *more,
            ctypes.c_uint(first_block), ctypes.c_uint(end),
        )  # fmt: skip
        if misaligned:
            raise RuntimeError(f"{source.name}: {misaligned} misaligned accesses (src={src:#x}, dst={dst:#x}, n={n})")


def build(
    kernels: Iterable[CastRule | KernelSource], *, optimize: bool = True, sanitize: bool = False, arch: int = 90
) -> HostKernels:
    """Compile kernels; a Rule stands for its contiguous kernel. `arch`: the architecture whose instructions they may
    use, such as 75 for sm_75.

    With `optimize` false, compiling takes a third of the time, and the kernels run ten times as long. `sanitize` adds
    AddressSanitizer and UndefinedBehaviorSanitizer, whose libraries must already be loaded.

    CompilerMissing without a C++ compiler; RuntimeError with the compiler's messages if it refuses the text.
    """
    sources = [kernel if isinstance(kernel, KernelSource) else kernel_source(kernel) for kernel in kernels]
    units = [sources[i : i + _UNIT] for i in range(0, len(sources), _UNIT)]
    command = [*compiler(), *flags(optimize, sanitize)]
    # A loaded library no longer needs its file.
    with (
        tempfile.TemporaryDirectory(prefix="gpucast-hostbuild-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(_PROCESSES) as pool,
    ):
        paths = pool.map(
            lambda i: _compile(command, unit_text(units[i], arch), Path(folder) / f"unit{i}"), range(len(units))
        )
        libraries = [ctypes.CDLL(str(path)) for path in paths]
    return HostKernels(sources, [library for unit, library in zip(units, libraries, strict=True) for _ in unit])


def build_batch(source: BatchSource) -> Callable[[int, np.ndarray[Any, Any]], None]:
    """A batch kernel, not optimized, as a function of the number of blocks and a record of its table; see `build`."""
    launcher = _LAUNCH.format(
        name=source.name, threads=source.threads, parameters=f"const {source.more}* more", arguments="*more"
    )
    text = shim() + join(source.prelude, source.structs, [source.kernel, launcher])
    with tempfile.TemporaryDirectory(prefix="gpucast-hostbuild-", ignore_cleanup_errors=True) as folder:
        library = ctypes.CDLL(str(_compile([*compiler(), *flags(optimize=False)], text, Path(folder) / "many")))
    function = library[f"launch_{source.name}"]
    function.restype = ctypes.c_ulonglong

    def launch(blocks: int, table: np.ndarray[Any, Any]) -> None:
        assert table.dtype == source.table and table.ndim == 0
        misaligned = function(ctypes.c_void_p(table.ctypes.data), ctypes.c_uint(0), ctypes.c_uint(blocks))
        if misaligned:
            raise RuntimeError(f"{source.name}: {misaligned} misaligned accesses")

    return launch


def unit_text(sources: Sequence[KernelSource], arch: int = 90) -> str:
    """A translation unit of kernels, with a C function ``launch_<name>`` for each."""
    structs = dict(row for source in sources for row in source.structs)
    kernels = [source.kernel + _launcher(source) for source in sources]
    return shim(arch) + join(sources[0].prelude, structs, kernels)


@lru_cache
def shim(arch: int = 90) -> str:
    """The text to put before kernels, or a device function, to compile them as host code."""
    return f"{_THREADS}#define GPUCAST_ARCH {10 * arch}\n{host_section()}"


def _launcher(source: KernelSource) -> str:
    parameters, arguments = _PARAMETERS, _ARGUMENTS
    if source.more is not None:
        parameters, arguments = f"{parameters}, const {source.more}* more", f"{arguments}, *more"
    return _LAUNCH.format(name=source.name, threads=source.threads, parameters=parameters, arguments=arguments)


def _compile(command: list[str], text: str, path: Path) -> Path:
    written, library = path.with_suffix(".cpp"), path.with_suffix(".so")
    written.write_text(text, encoding="utf-8")
    run = [*command, "-o", str(library), str(written)]
    result = subprocess.run(run, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        raise RuntimeError(f"hostbuild: {' '.join(command)} failed:\n{result.stderr[-4000:]}")
    return library
