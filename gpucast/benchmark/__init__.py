# SPDX-License-Identifier: Apache-2.0
"""Measures casts, and checks their results first. For `gpucast bench` and the benchmarks in bench/."""
