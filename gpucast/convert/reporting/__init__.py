# SPDX-License-Identifier: Apache-2.0
"""Reports of a conversion, as JSON and HTML."""
