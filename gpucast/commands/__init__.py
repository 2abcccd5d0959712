# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `gpucast`: each module adds its parser and runs it."""
