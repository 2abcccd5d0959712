# SPDX-License-Identifier: Apache-2.0
"""The version of the package, which the build reads, too."""

__version__ = "0.2.0"
