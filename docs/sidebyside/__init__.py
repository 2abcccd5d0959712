# SPDX-License-Identifier: Apache-2.0
"""gpucast beside other systems: what `docs/conformance.py` runs."""
