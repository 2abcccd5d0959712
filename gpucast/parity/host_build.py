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
#: The compiler's option that has it check accesses.
_CHECKS = "-fsanitize=alignment,bounds"

#: How threads and barriers become loops. A block's threads run one after the other: all of them up to the first
#: barrier, then all anew up to the second, and so on. So a kernel writes each place in shared memory between the same
#: two barriers only: nothing takes another's place.
_THREADS = """
namespace {
unsigned phase, passed;
bool at_barrier;
}
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

#: The accesses at which a GPU stops, or reads and writes elsewhere, are counted. Instructions for global memory take no
#: address of shared memory, which is a section of its own here, nor of a thread's memory, the stack. The compiler
#: instruments all others (`flags`); the functions that it calls are here, so that no library is needed.
_FAULTS = """
namespace {
struct { unsigned long long misaligned, outside, elsewhere; } faults;
const char* stack_end;
}
extern "C" {
#define HIDDEN __attribute__((visibility("hidden")))
extern const char __start_gpucast_shared[] __attribute__((weak)) HIDDEN;
extern const char __stop_gpucast_shared[] __attribute__((weak)) HIDDEN;
HIDDEN void __ubsan_handle_type_mismatch_v1(void*, unsigned long) { ++faults.misaligned; }
HIDDEN void __ubsan_handle_out_of_bounds(void*, unsigned long) { ++faults.outside; }
}
namespace {
void check_global(const void* pointer, unsigned bytes) {
    const char *at = (const char*)pointer, *stack = (const char*)__builtin_frame_address(0);
    faults.misaligned += (unsigned long long)pointer % bytes != 0;
    faults.elsewhere += (at >= __start_gpucast_shared && at < __stop_gpucast_shared) || (at >= stack && at < stack_end);
}
}
#define GPUCAST_CHECK_GLOBAL(pointer, bytes) check_global(pointer, bytes)
#define GPUCAST_SHARED static __attribute__((section("gpucast_shared")))
"""

#: One launch; the result is `faults`.
_LAUNCH = """
extern "C" const void* launch_{name}({parameters}, unsigned first_block, unsigned blocks) {{
    faults = {{}};
    stack_end = (const char*)__builtin_frame_address(0);
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
    return &faults;
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
    chosen.append("-fno-sanitize=all")
    # Kernels that are built for speed take the same ways, and run for minutes.
    return chosen if optimize else [*chosen, _CHECKS]


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


class _Faults(ctypes.Structure):
    """``faults`` of `_FAULTS`."""

    _fields_ = (
        ("misaligned", ctypes.c_ulonglong), ("outside", ctypes.c_ulonglong), ("elsewhere", ctypes.c_ulonglong),
    )  # fmt: skip

    def check(self, name: str, where: str = "") -> None:
        """RuntimeError where there are any."""
        counts = {
            "misaligned accesses": self.misaligned,
            "indices outside of an array": self.outside,
            "accesses of global memory to a block's or a thread's memory": self.elsewhere,
        }
        found = [f"{count} {kind}" for kind, count in counts.items() if count]
        if found:
            raise RuntimeError(f"{name}: {', '.join(found)}{where}")


class HostKernels:
    """Compiled kernels, found by name, or by the rule, shape and packing of their source."""

    def __init__(self, sources: Sequence[KernelSource], libraries: Sequence[ctypes.CDLL]) -> None:
        self._kernels: dict[str, tuple[KernelSource, Any]] = {}
        self._names: dict[tuple[CastRule, Shape, bool], str] = {}
        for source, library in zip(sources, libraries, strict=True):
            function = library[f"launch_{source.name}"]
            function.restype = ctypes.POINTER(_Faults)
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

        RuntimeError for an access at which a GPU would stop.
        """
        source, function = self._kernels[name]
        src, dst, n = arguments.src, arguments.dst, arguments.n
        end = source.blocks(n, dst) if blocks is None else first_block + blocks
        more = () if arguments.more is None else (arguments.more,)
        faults = function(
            ctypes.c_void_p(src), ctypes.c_uint(arguments.src_bit), ctypes.c_void_p(dst), ctypes.c_longlong(n), *more,
            ctypes.c_uint(first_block), ctypes.c_uint(end),
        )  # fmt: skip
        faults.contents.check(source.name, f" (src={src:#x}, dst={dst:#x}, n={n})")


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
    function.restype = ctypes.POINTER(_Faults)

    def launch(blocks: int, table: np.ndarray[Any, Any]) -> None:
        assert table.dtype == source.table and table.ndim == 0
        faults = function(ctypes.c_void_p(table.ctypes.data), ctypes.c_uint(0), ctypes.c_uint(blocks))
        faults.contents.check(source.name)

    return launch


def unit_text(sources: Sequence[KernelSource], arch: int = 90) -> str:
    """A translation unit of kernels, with a C function ``launch_<name>`` for each."""
    structs = dict(row for source in sources for row in source.structs)
    kernels = [source.kernel + _launcher(source) for source in sources]
    return shim(arch) + join(sources[0].prelude, structs, kernels)


@lru_cache
def shim(arch: int = 90) -> str:
    """The text to put before kernels, or a device function, to compile them as host code."""
    return f"{_THREADS}{_FAULTS}#define GPUCAST_ARCH {10 * arch}\n{host_section()}"


def _launcher(source: KernelSource) -> str:
    parameters, arguments = _PARAMETERS, _ARGUMENTS
    if source.more is not None:
        parameters, arguments = f"{parameters}, const {source.more}* more", f"{arguments}, *more"
    return _LAUNCH.format(name=source.name, threads=source.threads, parameters=parameters, arguments=arguments)


def _compile(command: list[str], text: str, path: Path) -> Path:
    written, unlinked, library = (path.with_suffix(suffix) for suffix in (".cpp", ".o", ".so"))
    written.write_text(text, encoding="utf-8")
    _run([*(option for option in command if option != "-shared"), "-c", "-o", str(unlinked), str(written)])
    # Linked without `_CHECKS`, for which a compiler would add a library.
    _run([*(option for option in command if option != _CHECKS), "-o", str(library), str(unlinked)])
    return library


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        raise RuntimeError(f"hostbuild: {' '.join(command)} failed:\n{result.stderr[-4000:]}")
