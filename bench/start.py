# SPDX-License-Identifier: Apache-2.0
"""From a fresh clone to a result: ``python3 bench/start.py demo`` or ``python3 bench/start.py test [pytest options]``.

Needs nothing but Python 3.10 with venv and pip. It makes `.venv` in the checkout (or uses the one that is there),
installs gpucast into it with what the job needs, and runs the job with it. CuPy and the CUDA compiler are installed for
the CUDA major that the NVIDIA driver runs; without a driver the demonstration does without them, while the tests, which
compile every kernel, take those of CUDA 12. The tests also compile the kernels for the host: where there is no C++
compiler, they bring along the one in the ziglang wheel.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOBS = {
    "demo": ("demo", [str(ROOT / "examples" / "digits.py")]),
    "test": (
        "test",
        ["-m", "pytest", "-n", "auto", "--dist", "worksteal", "--rootdir", str(ROOT), str(ROOT / "tests")],
    ),
}
#: The extras for a machine without a driver: the tests run CuPy on host memory and compile every kernel.
WITHOUT_DRIVER = {"demo": [], "test": ["cuda12"]}


def main(argv: list[str]) -> int:
    if sys.version_info < (3, 10):  # noqa: UP036 (the one file that an older Python gets to see)
        print(f"gpucast needs Python 3.10 or newer; this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    if not argv or argv[0] not in JOBS:
        print(__doc__, file=sys.stderr)
        return 2
    extra, command = JOBS[argv[0]]
    python = environment(ROOT / ".venv")
    compiler = compiler_extra() if argv[0] == "test" else []
    extras = ",".join([extra, *(cuda_extra() or WITHOUT_DRIVER[argv[0]]), *compiler])
    print(f"installing gpucast[{extras}] into .venv ...", flush=True)
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--editable",
        f"{ROOT}[{extras}]",
    ]
    if subprocess.run(install, check=False).returncode:
        print("the installation failed; see above", file=sys.stderr)
        return 1
    return subprocess.run([python, *command, *argv[1:]], check=False).returncode


def environment(folder: Path) -> str:
    """The Python of a virtual environment, which is created if it does not exist or is broken."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (
        not python.exists()
        or subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode
    ):
        venv.create(folder, clear=True, with_pip=True)
    return str(python)


def cuda_extra() -> list[str]:
    """The extra with the CUDA packages for this machine's driver; none without a driver."""
    spec = importlib.util.spec_from_file_location("gpucast_driver", ROOT / "gpucast" / "compile" / "nvidia.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    driver = module.find()
    return [] if driver is None or driver.cuda < (12, 0) else [module.extra(driver.cuda)]


def compiler_extra() -> list[str]:
    """The extra with a C++ compiler, for a machine without one."""
    is_there = os.environ.get("CXX") or any(map(shutil.which, ("g++", "clang++", "c++")))
    return [] if is_there else ["compiler"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
