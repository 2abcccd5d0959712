# SPDX-License-Identifier: Apache-2.0
"""Dask, under its public name; it is `gpucast.libraries.dask`."""

from gpucast.core import packages
from gpucast.libraries import dask
from gpucast.libraries.dask import LIBRARY, cast

__doc__ = dask.__doc__

__all__ = ["LIBRARY", "cast"]

packages.publish(globals())
