# SPDX-License-Identifier: Apache-2.0
"""The tests of tensors with several versions of PyTorch, each in a virtual environment beside this one::

    python tests/libraries/torch_matrix.py 2.9.1 2.11.0 2.13.0 2.15.0 --folder /tmp/torches

An environment holds torch alone and borrows all other packages from the Python that runs this. It stays in the folder,
where the next run finds it; with torch's packages for CUDA it takes 5 GB. Exit status 1 if a test failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = (
    *sorted(str(path) for path in Path(__file__).parent.glob("test_torch*.py")),
    "tests/casting/test_cast_many_torch.py",
    "tests/mixed",
)


def environment(version: str, folder: Path) -> Path:
    """The Python of the environment with a version of torch, which is made where there is none."""
    place = folder / f"torch-{version}"
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"torch=={version}"], check=True)
        site = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        # Last, so that pip saw none of them, and behind its own packages.
        Path(site.strip(), "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", help="versions of torch, as pip has them")
    parser.add_argument("--folder", type=Path, help="where the environments stay; default: nowhere")
    parser.add_argument("--exhaustive", action="store_true", help="with inductor, too, which takes minutes")
    options = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        for version in options.versions:
            python = environment(version, options.folder or Path(temporary))
            name = subprocess.check_output([python, "-c", "import torch; print(torch.__version__)"], text=True).strip()
            command = [python, "-m", "pytest", "-q", *TESTS, *["--exhaustive"] * options.exhaustive]
            print(f"torch {name}", flush=True)
            if subprocess.run(command, cwd=ROOT, check=False).returncode:
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
