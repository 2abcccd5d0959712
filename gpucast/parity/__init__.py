# SPDX-License-Identifier: Apache-2.0
"""The parity harness: backends against the reference, bit for bit, for every rule of every pair.

`backends` are the implementations to compare (the GPU, the host build of its kernels, the host path). `compare` checks
one rule on an array of codes, `sweep` on all 2^32; `case_choice` and `work` do so for many rules; `report` and
`picture` show the results.
"""
