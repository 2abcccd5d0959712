# SPDX-License-Identifier: Apache-2.0
"""The hook that hatchling runs when gpucast is installed or packed: it builds the extension module.

Environment: ``GPUCAST_HOST_LEVELS``, as ``--levels`` of `gpucast.host.build` ("all" for wheels that go to other
machines); with ``GPUCAST_NO_HOST=1`` nothing is built.
"""

from __future__ import annotations

import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class HostModuleHook(BuildHookInterface[Any]):
    """Builds ``gpucast/_host.abi3.so`` in the checkout, from where wheels take it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the module. If it cannot be built, the installation goes on without it and prints the reason."""
        sys.path.insert(0, self.root)
        from gpucast.host import build

        if build.build_or_say_why():
            build_data["artifacts"].append("/gpucast/_host.abi3.so")
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp310-abi3-{platform}"
        else:
            build_data["artifacts"].append("/gpucast/_host_missing.txt")
