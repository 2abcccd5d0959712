# SPDX-License-Identifier: Apache-2.0
"""Other libraries doing the same work."""
