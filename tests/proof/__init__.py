# SPDX-License-Identifier: Apache-2.0
"""Proofs that a kernel casts every input as specified, from the PTX that NVRTC makes of it.

`ptx` reads the PTX. `machine` executes it on `terms`, which stand for unknown inputs; `instructions` says what each
instruction computes. `prover` compares the result with the `specification`, over all inputs (`evaluation`) or with SMT
solvers (`solvers`).

`simt` executes whole launches on known numbers, and stops at what a GPU forbids; `registers`, `spaces` and `warps` are
its parts. Both machines take the meaning of instructions from `instructions`.
"""
