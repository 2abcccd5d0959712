# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.gpu.stem`` prints a name for results of this GPU and this code; exit code 1 without a GPU."""

from __future__ import annotations

import sys

from bench.report.results import slug
from bench.revision import code_digest
from gpucast.kernel import devices


def main() -> int:
    problem = devices.unavailable()
    if problem is not None:
        print(f"bench/gpu.sh: there is no GPU that gpucast can use: {problem[0]}; {problem[1]}", file=sys.stderr)
        return 1
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"gpu-{slug(name)}-{code_digest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
