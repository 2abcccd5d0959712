# SPDX-License-Identifier: Apache-2.0
"""What a GPU is needed for, the most valuable first."""
