# SPDX-License-Identifier: Apache-2.0
"""One value for each kernel, its CUDA text, and the machine code that NVRTC makes of it. Needs no GPU and no CuPy."""
