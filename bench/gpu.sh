#!/usr/bin/env bash
# Everything that needs a GPU, the most valuable first (see bench/GPU.md): what users write, the tests, the benchmark,
# every rule against the reference, misaligned arrays, all 2^32 codes of FLOAT, compute-sanitizer. What a step finds is
# in its file at once; a second run of the same code goes on where the first one ended.
# PYTHON (python3) must have CuPy for the driver's CUDA, numpy, ml_dtypes and pytest. RESULTS (bench/results): where the
# files go. GPUCAST_COMMIT: names the commit where there is no git. The exit code is 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
# Else JAX takes three quarters of the memory in every process that imports it.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
# Room for all kernels of all steps, so that none is compiled twice.
export GPUCAST_CACHE_SIZE=${GPUCAST_CACHE_SIZE:-1024}
exec "${PYTHON:-python3}" -m bench.gpu.first_run
