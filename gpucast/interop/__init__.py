# SPDX-License-Identifier: Apache-2.0
"""Other libraries, under their public names. Each is an optional dependency, imported only when its module is."""
