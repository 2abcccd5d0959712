# SPDX-License-Identifier: Apache-2.0
"""Plans a conversion completely before anything is written."""
