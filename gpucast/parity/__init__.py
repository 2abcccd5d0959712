# SPDX-License-Identifier: Apache-2.0
"""The parity harness: backends against the reference, bit for bit, for every rule of every pair.

`backends` are the implementations to compare (the GPU, the host build of its kernels, the host path). `compare` checks
rules on arrays of codes, `sweep` one rule on all 2^32; `cases` chooses the rules; `report` shows the results.
"""
