# SPDX-License-Identifier: Apache-2.0
"""The C library of the host path, compiled where it is used, and its bindings."""
