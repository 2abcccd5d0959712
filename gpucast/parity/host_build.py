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

#: Before the built-ins of CUDA: what waits for the threads of a block.
_WAITING = """
namespace { void wait_for_block(); }
#define GPUCAST_BARRIER() wait_for_block()
"""

#: How threads become loops, after the built-ins of CUDA. A thread runs until it waits for others or ends. The next one
#: goes on with the stack of one that has ended, and else gets a stack of its own, so that a kernel without barriers is
#: a plain loop. Lanes of a warp wait for each other in shuffles, threads of a block at barriers; those that have ended
#: are not waited for.
_THREADS = """
#include <sys/mman.h>
#include <ucontext.h>
namespace {
typedef void Body(const unsigned char*);
enum class State : unsigned char { runs, at_warp, at_block, ended };
enum : unsigned { most_threads = 1024, stack_bytes = 1 << 19 };
struct Stack {
    ucontext_t context;
    char* memory;
} stacks[most_threads];
struct {
    ucontext_t caller;
    Body* body;
    const unsigned char* given;
    unsigned threads, next, stack;
    State state[most_threads];
    unsigned short stack_of[most_threads];
} running;

void run_threads() {
    const unsigned stack = running.stack;
    for (;;) {
        while (running.next < running.threads) {
            const unsigned me = threadIdx.x = running.next++;
            running.stack_of[me] = (unsigned short)stack;
            running.state[me] = State::runs;
            running.body(running.given);
            running.state[me] = State::ended;
        }
        swapcontext(&stacks[stack].context, &running.caller);
    }
}
void go_on(unsigned stack) {
    running.stack = stack;
    stack_end = stacks[stack].memory + stack_bytes;
    swapcontext(&running.caller, &stacks[stack].context);
}
void wait(State state) {
    const unsigned me = threadIdx.x;
    running.state[me] = state;
    swapcontext(&stacks[running.stack_of[me]].context, &running.caller);
    threadIdx.x = me;
}
void wait_for_block() { wait(State::at_block); }

// Lets some threads go on that all wait in one way, or have ended. False where they do not.
bool release(unsigned begin, unsigned end, State state) {
    bool some = false;
    for (unsigned i = begin; i < end; ++i) {
        if (running.state[i] != state && running.state[i] != State::ended) return false;
        some |= running.state[i] == state;
    }
    for (unsigned i = begin; i < end; ++i) {
        if (running.state[i] != state) continue;
        running.state[i] = State::runs;
        go_on(running.stack_of[i]);
    }
    return some;
}
void run_block() {
    running.next = 0;
    for (unsigned stack = 0; running.next < running.threads; ++stack) {
        Stack& one = stacks[stack];
        if (!one.memory) {
            const int use = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
            one.memory = (char*)mmap(nullptr, stack_bytes, use, kind, -1, 0);
        }
        getcontext(&one.context);
        one.context.uc_stack.ss_sp = one.memory;
        one.context.uc_stack.ss_size = stack_bytes;
        one.context.uc_link = nullptr;
        makecontext(&one.context, run_threads, 0);
        go_on(stack);
    }
    for (bool some = true; some;) {
        some = false;
        for (unsigned i = 0; i < running.threads; i += 32) {
            some |= release(i, i + 32 < running.threads ? i + 32 : running.threads, State::at_warp);
        }
        if (!some) some = release(0, running.threads, State::at_block);
    }
    for (unsigned i = 0; i < running.threads; ++i) faults.stuck += running.state[i] != State::ended;
}
void run_blocks(Body* body, const unsigned char* given, unsigned threads, unsigned first, unsigned end) {
    faults = {};
    running.body = body, running.given = given, running.threads = threads;
    blockDim.x = threads, gridDim.x = end;
    for (blockIdx.x = first; blockIdx.x < end; ++blockIdx.x) run_block();
}
unsigned long long of_lanes[most_threads];
template <typename Word>
Word __shfl_xor_sync(unsigned, Word value, unsigned step) {
    of_lanes[threadIdx.x] = value;
    wait(State::at_warp);
    const Word other = (Word)of_lanes[threadIdx.x ^ step];
    wait(State::at_warp);
    return other;
}
}
"""

#: The accesses at which a GPU stops, or reads and writes elsewhere, are counted. Instructions for global memory take no
#: address of shared memory, which is a section of its own here, nor of a thread's memory, the stack. The compiler
#: instruments all others (`flags`); the functions that it calls are here, so that no library is needed.
_FAULTS = """
namespace {
struct { unsigned long long misaligned, outside, elsewhere, stuck; } faults;
[[maybe_unused]] const char* stack_end;
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
static void body_{name}(const unsigned char* given) {{
    {name}({arguments});
}}
extern "C" const void* launch_{name}(const unsigned char* given, unsigned first_block, unsigned blocks) {{
    run_blocks(body_{name}, given, {threads}, first_block, blocks);
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
        ("stuck", ctypes.c_ulonglong),
    )  # fmt: skip

    def check(self, name: str, where: str = "") -> None:
        """RuntimeError where there are any."""
        counts = {
            "misaligned accesses": self.misaligned,
            "indices outside of an array": self.outside,
            "accesses of global memory to a block's or a thread's memory": self.elsewhere,
            "threads that wait for others forever": self.stuck,
        }
        found = [f"{count} {kind}" for kind, count in counts.items() if count]
        if found:
            raise RuntimeError(f"{name}: {', '.join(found)}{where}")


class HostKernels:
    """Compiled kernels by name."""

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
    return f"{_WAITING}{_FAULTS}#define GPUCAST_ARCH {10 * arch}\n{host_section()}{_THREADS}"


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
