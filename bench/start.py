# SPDX-License-Identifier: Apache-2.0
"""From a fresh clone to a result: ``python3 bench/start.py demo`` or ``python3 bench/start.py test [pytest options]``.

Needs nothing but Python 3.10 with venv and pip. It makes `.venv` in the checkout (or uses the one that is there),
installs gpucast into it with what the job needs, and runs the job with it. CuPy and the CUDA compiler are installed for
the CUDA major that the NVIDIA driver runs; without a driver the demonstration does without them, while the tests, which
compile every kernel, take those of CUDA 12. The installation compiles the host's loops: where there is no C++ compiler,
the one in the ziglang wheel is installed first.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
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
#: Of pip its errors alone: its warnings would be the first thing that a newcomer reads.
_PIP = ("-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check")
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
    variables = dict(os.environ)
    if not has_compiler():
        print("there is no C++ compiler: installing the one in the ziglang wheel into .venv ...", flush=True)
        if (command_of := compiler(python)) is not None:
            variables["CXX"] = command_of
    extras = ",".join([extra, *(cuda_extra() or WITHOUT_DRIVER[argv[0]])])
    print(f"installing gpucast[{extras}] into .venv, and compiling its loops (a minute or two) ...", flush=True)
    if subprocess.run([python, *_PIP, "--editable", f"{ROOT}[{extras}]"], check=False, env=variables).returncode:
        print("the installation failed; see above", file=sys.stderr)
        return 1
    return subprocess.run([python, *command, *argv[1:]], check=False).returncode


def environment(folder: Path) -> str:
    """The Python of a virtual environment, which is created if it does not exist or is broken."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    has_pip = [str(python), "-m", "pip", "--version"]
    if not python.exists() or subprocess.run(has_pip, capture_output=True, check=False).returncode:
        venv.create(folder, clear=True, with_pip=True)
    return str(python)


def cuda_extra() -> list[str]:
    """The extra with the CUDA packages for this machine's driver; none without a driver."""
    spec = importlib.util.spec_from_file_location("gpucast_driver", ROOT / "gpucast" / "kernel" / "nvidia.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    driver = module.find()
    return [] if driver is None or driver.cuda < (12, 0) else [module.extra(driver.cuda)]


def has_compiler() -> bool:
    return bool(os.environ.get("CXX")) or any(map(shutil.which, ("g++", "clang++", "c++")))


def compiler(python: str) -> str | None:
    """Install the compiler in the ziglang wheel; its command, or None where that failed."""
    if subprocess.run([python, *_PIP, "ziglang>=0.13"], check=False).returncode:
        return None
    # By its path: "-m ziglang" would first look in the current folder.
    where = "import importlib.util; print(importlib.util.find_spec('ziglang').origin)"
    found = subprocess.run([python, "-I", "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    return shlex.join([python, str(Path(found).with_name("__main__.py")), "c++"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
