# SPDX-License-Identifier: Apache-2.0
"""A package, so that ``python -m tests.proof`` is a command."""
