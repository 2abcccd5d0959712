# SPDX-License-Identifier: Apache-2.0
"""The kernels compiled as host code, for the parity harness and the tests; `gpucast.cast` never uses them.

A C++ compiler compiles the text of a `gpucast.kernel.kernel.Kernel` unchanged, with a shim that provides what is built
into CUDA. A launch is a loop over blocks and threads. So rules, tiles, tails and launch geometry are tested without
a GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpucast.core.rule import CastRule
from gpucast.kernel import cxx
from gpucast.kernel.cast_kernel import Shape
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.kernel import ARRAY, Kernel, Part, host_section, parts_text, unit

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
extern "C" const void* launch_{name}(const unsigned char* given, unsigned first_block, unsigned blocks) {{
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


class Arguments(NamedTuple):
    """The arguments of a launch of a kernel of one array: the addresses of the first elements, and the number of
    elements."""

    src: int
    dst: int
    n: int
    #: The bit of its first byte at which a packed source begins, 0 to 7.
    src_bit: int = 0
    #: The bytes of the struct after the others, if the kernel has it.
    more: bytes = b""


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
    """Compiled kernels, found by name."""

    def __init__(self, kernels: Sequence[Kernel], libraries: Sequence[ctypes.CDLL]) -> None:
        self._kernels: dict[str, tuple[Kernel, Any]] = {}
        for kernel, library in zip(kernels, libraries, strict=True):
            function = library[f"launch_{kernel.name}"]
            function.restype = ctypes.POINTER(_Faults)
            self._kernels[kernel.name] = (kernel, function)

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
        """Launch the kernel of a rule and a shape, with nothing else fused; the other arguments as for `launch`."""
        name = cast_kernel(rule, shape, unpacked).name
        self.launch(name, arguments, first_block=first_block, blocks=blocks)

    def launch(self, name: str, arguments: Arguments, *, first_block: int = 0, blocks: int | None = None) -> None:
        """Launch a kernel of one array: `blocks` of its blocks (None: all) from `first_block` on."""
        src, dst, n, src_bit, more = arguments
        blocks = self._kernels[name][0].blocks(n, dst) - first_block if blocks is None else blocks
        self.start(name, blocks, ARRAY.pack(src, src_bit, dst, n) + more, first_block)

    def start(self, name: str, blocks: int, arguments: bytes | np.ndarray[Any, Any], first_block: int = 0) -> None:
        """Launch a kernel, with the bytes of its arguments or a record of them.

        RuntimeError for an access at which a GPU would stop.
        """
        kernel, function = self._kernels[name]
        given = np.frombuffer(arguments, np.uint8) if isinstance(arguments, bytes) else arguments
        assert given.nbytes == kernel.arguments.nbytes, f"{name}: {given.nbytes} bytes of arguments"
        faults = function(
            ctypes.c_void_p(given.ctypes.data), ctypes.c_uint(first_block), ctypes.c_uint(first_block + blocks)
        )
        where = ""
        if "src" in kernel.arguments.offsets:
            src, _, dst, n = ARRAY.layout.unpack_from(given.tobytes())
            where = f" (src={src:#x}, dst={dst:#x}, n={n})"
        faults.contents.check(name, where)


def build(
    kernels: Iterable[CastRule | Kernel], *, optimize: bool = True, sanitize: bool = False, arch: int = 90
) -> HostKernels:
    """Compile kernels; a rule stands for its contiguous kernel. `arch`: the architecture whose instructions they may
    use, such as 75 for sm_75.

    With `optimize` false, compiling takes a third of the time, and the kernels run ten times as long. `sanitize` adds
    AddressSanitizer and UndefinedBehaviorSanitizer, whose libraries must already be loaded.

    CompilerMissing without a C++ compiler; RuntimeError with the compiler's messages if it refuses the text.
    """
    alike: dict[tuple[Part, ...], list[Kernel]] = {}
    for one in kernels:
        kernel = one if isinstance(one, Kernel) else cast_kernel(one)
        alike.setdefault(kernel.parts, []).append(kernel)
    units = [listed[i : i + _UNIT] for listed in alike.values() for i in range(0, len(listed), _UNIT)]
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
    found = [(kernel, library) for of, library in zip(units, libraries, strict=True) for kernel in of]
    return HostKernels([kernel for kernel, _ in found], [library for _, library in found])


def unit_text(kernels: Sequence[Kernel], arch: int = 90) -> str:
    """A translation unit of kernels of the same parts, with a C function ``launch_<name>`` for each."""
    dtypes = [kind for kernel in kernels for kind in kernel.dtypes]
    return shim(arch) + unit(
        parts_text(kernels[0].parts), dtypes, [kernel.line + _launcher(kernel) for kernel in kernels]
    )


@lru_cache
def shim(arch: int = 90) -> str:
    """The text to put before kernels, or a device function, to compile them as host code."""
    return f"{_THREADS}{_FAULTS}#define GPUCAST_ARCH {10 * arch}\n{host_section()}"


def _launcher(kernel: Kernel) -> str:
    arguments, checks = [], ""
    for place in kernel.arguments.places:
        kind = place.type if isinstance(place.type, str) else place.type.type
        if isinstance(place.type, Fields):
            checks += f'static_assert(sizeof({kind}) == {place.type.nbytes}, "{kind} in Python and in C++");\n'
        arguments.append(f"*({kind} const*)(given + {place.offset})")
    launcher = _LAUNCH.format(name=kernel.name, threads=kernel.threads, arguments=", ".join(arguments))
    return f"namespace gpucast {{\n{checks}{launcher}}}\n"


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
