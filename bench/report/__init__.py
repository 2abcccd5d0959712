# SPDX-License-Identifier: Apache-2.0
"""Results in files, and the tables and pictures of them."""
