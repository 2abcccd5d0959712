# SPDX-License-Identifier: Apache-2.0
"""From rules and shapes to CUDA text. Pure functions: no compiler, no GPU."""
