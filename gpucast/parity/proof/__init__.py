# SPDX-License-Identifier: Apache-2.0
"""Proofs that kernels cast every input as specified, from the PTX that NVRTC makes of them.

`ptx` reads it, `machine` executes it on `terms` of unknown inputs with the meaning that `instructions` gives, and
`prover` compares what is written with the `specification`: for all inputs by `evaluation`, or with `solvers`.
"""
