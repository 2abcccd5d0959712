# SPDX-License-Identifier: Apache-2.0
"""The exact meaning of every cast, computed slowly: the specification of record.

It works on values, not on bits, and shares only the dtype table with the host path and the kernels, so that agreement
is evidence. `gpucast.reference.exact_cast` explains how it works.
"""

from gpucast.core import packages
from gpucast.reference.exact_cast import cast

__all__ = ["cast"]

packages.publish(globals())
