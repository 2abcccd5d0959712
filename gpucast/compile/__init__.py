# SPDX-License-Identifier: Apache-2.0
"""From text to machine code: NVRTC and its cache, the host's compiler, and the NVIDIA driver's report."""
