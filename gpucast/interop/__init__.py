# SPDX-License-Identifier: Apache-2.0
"""Bridges to other libraries. Each is an optional dependency, imported only when its module is."""
