# SPDX-License-Identifier: Apache-2.0
"""Measuring casts: check first, then time. For `gpucast bench`, and for the benchmark in bench/."""
