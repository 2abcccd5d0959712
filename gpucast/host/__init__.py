# SPDX-License-Identifier: Apache-2.0
"""Casts on the host: by the extension module `gpucast._host`, or slowly by the reference where that is missing."""
