# SPDX-License-Identifier: Apache-2.0
"""The `gpucast` command. Each module but `main` adds a subcommand's parser and runs it, or helps those that do."""

from gpucast.cli.main import main

__all__ = ["main"]
