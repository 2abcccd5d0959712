# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries. Each is an optional dependency, imported only when an array of it has come."""
