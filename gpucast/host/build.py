# SPDX-License-Identifier: Apache-2.0
"""Builds the extension module `gpucast._host`: ``python -m gpucast.host.build [--levels native|all|x86-64-v3,...]
[--sanitize address,undefined]``.

Objects are kept, by the digests of their texts, in ``build/host`` of the checkout (``GPUCAST_BUILD_DIR`` names another
folder), so that only what has changed is compiled again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpucast.core import extension
from gpucast.kernel import cxx
from gpucast.kernel.host_units import HostUnit, units

#: The levels of each processor, the best first: the compiler's option, and flags that Linux shows for all of a level.
LEVELS = {
    "x86_64": {
        "x86-64-v4": ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma"}),
        "x86-64-v3": ("x86-64-v3", {"avx2", "fma", "f16c", "bmi1", "bmi2"}),
        "x86-64-v2": ("x86-64-v2", {"sse4_2", "ssse3", "popcnt"}),
    },
    "aarch64": {"arm64": ("armv8-a", set[str]())},
}
_MACHINE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())

#: Loops are vectorized, some as an `omp simd` says. Each operation is rounded by itself, whatever options $CXX holds.
#: Nobody reads floating-point exceptions or errno, so both sides of a choice may be computed.
_FLAGS = (
    "-std=c++17", "-O3", "-fno-fast-math", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno",
    "-fopenmp-simd", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-fPIC", "-Wall",
    "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function",
)  # fmt: skip
#: The compiler of ziglang enables sanitizers by default.
_UNSANITIZED = ("-fno-sanitize=all",)
#: Epilogues of loops that are not vectorized themselves halve the time to compile.
_GCC_FLAGS = ("--param", "vect-epilogues-nomask=0", "-Wno-psabi")
_CLANG_FLAGS = (
    "-Wno-unused-command-line-argument",
    "-Wno-pass-failed",
    "-Wno-undefined-internal",
    "-Wno-undefined-inline",
)


#: Where Python looks for the module.
MISSING = Path(extension.MISSING)
_TARGET = MISSING.with_name("_host.abi3.so")


class BuildError(RuntimeError):
    """The module cannot be built here. The message says why, in the compiler's own words where it stopped."""


@dataclass(frozen=True)
class _Job:
    """A translation unit and the options of its own."""

    name: str
    text: str
    options: tuple[str, ...]


def build(
    target: Path, levels: Sequence[str], tell: Callable[[str], None] = print, sanitizers: Sequence[str] = ()
) -> None:
    """Build the module as the file `target`, with loops for these levels. BuildError where that fails.

    `sanitizers` are names of the compiler's, such as "address": the process ends where one of them finds something.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("free-threaded Pythons have no stable interface for extension modules")
    if _MACHINE not in LEVELS:
        raise BuildError(f"there are no loops for {platform.machine()}; expected one of {', '.join(LEVELS)}")
    try:
        compiler = cxx.find("build")
    except cxx.CompilerMissing as error:
        raise BuildError(str(error)) from None
    version = _run([*compiler, "--version"]).splitlines()[0]
    own = _CLANG_FLAGS if "clang" in version.lower() else _GCC_FLAGS
    folder = Path(os.environ.get("GPUCAST_BUILD_DIR") or _root() / "build" / "host")
    folder.mkdir(parents=True, exist_ok=True)
    # Zig has the processors' names of its own.
    is_zig = any("zig" in word for word in compiler)
    option = "-mcpu={}" if is_zig else "-march={}"
    jobs = _jobs(list(units()), levels, option)
    checks = _sanitizing(sanitizers)
    command = [*compiler, *_FLAGS, *own, *checks]
    tell(f"gpucast: building the host's loops for {', '.join(levels)} with {version}")
    objects = _compiled(jobs, command, version, folder, tell)
    made = folder / f"{os.getpid()}.so"
    # Nothing here is of C++'s own library, which Zig would compile first, for minutes.
    linker = ["cc" if is_zig and word == "c++" else word for word in compiler]
    # Sanitizers name the lines of the text, which are among the symbols.
    link = [*linker, "-shared", "-fPIC", *checks, *(() if sanitizers else ("-Wl,-s",)), "-o", str(made), *objects]
    try:
        _run(link)
        os.replace(shutil.copy(made, target.with_suffix(".new")), target)
    finally:
        made.unlink(missing_ok=True)
    tell(f"gpucast: {target.name} has {target.stat().st_size / 2**20:.1f} MiB")


def _sanitizing(sanitizers: Sequence[str]) -> tuple[str, ...]:
    """The compiler's options for sanitizers, behind those of `_FLAGS`."""
    if not sanitizers:
        return _UNSANITIZED
    # With all of the optimizer's work the checks would take minutes to compile.
    return ("-O1", "-g1", f"-fsanitize={','.join(sanitizers)}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def native_levels() -> list[str]:
    """The best level of this machine, as Linux tells; elsewhere all levels."""
    known = LEVELS.get(_MACHINE, {})
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as cpus:
            flags = set(next((line.partition(":")[2] for line in cpus if line.startswith("flags")), "").split())
    except OSError:
        return list(known)
    return [name for name, (_, needed) in known.items() if needed <= flags][:1] or list(known)[-1:]


def _jobs(every: Sequence[HostUnit], levels: Sequence[str], option: str) -> list[_Job]:
    jobs = []
    tables, lists = [], []
    for level in levels:
        short = level.rpartition("-")[2]
        symbols = [f"gpucast_entries_{unit.name}_{short}" for unit in every]
        name = LEVELS[_MACHINE][level][0]
        processor = option.format(name.replace("-", "_") if "mcpu" in option else name)
        for unit, symbol in zip(every, symbols, strict=True):
            # Renamed by level: the linker must not take an inline function of one for that of another.
            options = (processor, f"-Dgpucast=gpucast_{short}", f"-DGPUCAST_ENTRIES={symbol}")
            jobs.append(_Job(f"{unit.name} {short}", unit.text, options))
        tables += [f"extern const gpucast::Entry* const {symbol};\n" for symbol in symbols]
        lists.append((level, short, symbols))
    text = "".join(
        [
            '#include "levels.hpp"\nextern "C" {\n', *tables, "}\n",
            *(
                f"static const gpucast::Entry* const* const {short}[] = {{&{', &'.join(symbols)}, nullptr}};\n"
                for _, short, symbols in lists
            ),
            'extern "C" const gpucast::Level gpucast_levels[] = {',
            *(f'{{"{level}", {short}}}, ' for level, short, _ in lists), "{nullptr, nullptr}};\n",
        ]
    )  # fmt: skip
    python = ("-isystem", sysconfig.get_path("include"), "-isystem", _numpy_headers(), "-I", str(_sources()))
    baseline = ("-Dgpucast=gpucast_module", *python)
    module = (_sources() / "module.cpp").read_text(encoding="utf-8")
    # Headers count as a part of the text.
    headers = "".join(f"// {_digest(path.read_text(encoding='utf-8'))}\n" for path in sorted(_sources().glob("*.hpp")))
    return [*jobs, _Job("module", module + headers, baseline), _Job("levels", text + headers, baseline)]


def _compiled(
    jobs: Sequence[_Job], command: Sequence[str], version: str, folder: Path, tell: Callable[[str], None]
) -> list[str]:
    """The objects of all jobs; missing ones are compiled."""
    objects = [folder / f"{_digest(version, *command, *job.options, job.text)}.o" for job in jobs]
    missing = [(job, path) for job, path in zip(jobs, objects, strict=True) if not path.exists()]
    done = 0

    def compile_one(one: tuple[_Job, Path]) -> None:
        nonlocal done
        job, path = one
        with tempfile.TemporaryDirectory(prefix="gpucast-build-", dir=folder) as own:
            text, made = Path(own) / "unit.cpp", Path(own) / "unit.o"
            text.write_text(job.text, encoding="utf-8")
            _run([*command, *job.options, "-c", str(text), "-o", str(made)])
            os.replace(made, path)
        done += 1
        if sys.stdout.isatty():
            print(f"\rgpucast: compiled {done} of {len(missing)} parts", end="", flush=True)
        elif done % 20 == 0 or done == len(missing):
            tell(f"gpucast: compiled {done} of {len(missing)} parts")

    if missing:
        with ThreadPoolExecutor(_cores()) as pool:
            futures = [pool.submit(compile_one, one) for one in missing]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if sys.stdout.isatty():
            print()
    return list(map(str, objects))


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip()
        raise BuildError(f"{' '.join(command[:3])} ... failed:\n{words[-4000:]}")
    return done.stdout


def _digest(*parts: str) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(f"{len(part)}:{part}".encode())
    return found.hexdigest()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _sources() -> Path:
    here = Path(__file__).resolve().parents[1]
    return next(folder for folder in (here / "kernels" / "host", here.parent / "kernels" / "host") if folder.is_dir())


def _numpy_headers() -> str:
    import numpy

    return str(numpy.get_include())


def build_or_say_why(levels: str = "", sanitizers: Sequence[str] = ()) -> bool:
    """Build the module where Python looks for it. Where that fails, say why, here and later in `gpucast info`, and
    return False."""
    levels = levels or os.environ.get("GPUCAST_HOST_LEVELS") or "native"
    is_left_out = os.environ.get("GPUCAST_NO_HOST") == "1"
    if is_left_out and _TARGET.exists():
        # Built elsewhere, as that of the Docker image is.
        return True
    MISSING.unlink(missing_ok=True)
    try:
        if is_left_out:
            raise BuildError("it was installed with GPUCAST_NO_HOST=1")
        build(_TARGET, _chosen(levels), sanitizers=sanitizers)
        return True
    except BuildError as error:
        _TARGET.unlink(missing_ok=True)
        MISSING.write_text(f"{error}\n", encoding="utf-8")
        print(f"gpucast: casts on the host will be slow, because its loops were not built: {error}", file=sys.stderr)
        print(f"gpucast: to build them, run: {sys.executable} -m gpucast.host.build", file=sys.stderr)
        return False


def _chosen(levels: str) -> list[str]:
    known = list(LEVELS.get(_MACHINE, {}))
    chosen = native_levels() if levels == "native" else known if levels == "all" else levels.split(",")
    if unknown := [level for level in chosen if level not in known]:
        raise BuildError(
            f"levels {','.join(unknown)} are not known here; expected native, all or of {', '.join(known)}"
        )
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpucast.host.build", description="Build gpucast._host.")
    parser.add_argument("--levels", default="", help="native (the default), all, or names such as x86-64-v3")
    parser.add_argument(
        "--sanitize",
        default="",
        metavar="NAMES",
        help="with these sanitizers of the compiler, such as address,undefined; their library has to be loaded before "
        "Python: LD_PRELOAD=$(g++ -print-file-name=libasan.so); this command does not start again without it, either, "
        "before gpucast/_host.abi3.so is removed",
    )
    given = parser.parse_args(argv)
    return 0 if build_or_say_why(given.levels, tuple(filter(None, given.sanitize.split(",")))) else 1


if __name__ == "__main__":
    sys.exit(main())
