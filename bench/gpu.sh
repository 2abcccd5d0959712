#!/usr/bin/env bash
# Everything that needs a GPU, in two calls of 570 s each (see bench/GPU.md):  bench/gpu.sh first; bench/gpu.sh second
#   first:  tests      the tests marked gpu          parity     every rule of every pair against the reference
#           layouts    strided and misaligned        sweeps     all 2^32 codes of FLOAT, for narrow destinations
#           sanitizer  memcheck, racecheck and initcheck over our kernels
#   second: quick      gpucast bench --quick         many       300 tensors in one call (gpucast.cast_many)
#           quantize   scaled and block formats      bench      the whole benchmark; goes on where an earlier run ended
# Parts may be named instead; without any, both calls' in one. bench/gpu_parts.py has their seconds.
# PYTHON (python3) must have CuPy for the driver's CUDA, numpy, ml_dtypes and pytest. GPU_SECONDS (570): the time for all.
# RESULTS (bench/results): gets one archive. GPU_ARCHIVE: an earlier one to go on with. GPUCAST_COMMIT: the commit, where
# there is no git. GPU_WORK (build/gpu-run): the files of the run. The exit code is 1 if any part failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
# Else JAX takes three quarters of the memory in every process that imports it.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
export PYTHON=${PYTHON:-python3}
exec "$PYTHON" -m bench.gpu_run "$@"
