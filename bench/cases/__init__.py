# SPDX-License-Identifier: Apache-2.0
"""What is measured: arrays, contenders, and the check of their results."""
