# SPDX-License-Identifier: Apache-2.0
"""The specification of record: what every cast means, literally, exactly and slowly.

It works on values, not on bits, and shares nothing with the host path or the kernels but the dtype rows, so that
agreement is evidence. `gpucast.reference.casting` says how.
"""

from gpucast.reference.casting import cast

__all__ = ["cast"]
