#!/usr/bin/env bash
# Everything that needs a GPU, in one call: tests, exhaustive parity, results. Usage: bench/gpu.sh [folder for results]
# Uses the Python on PATH, which must have CuPy for the driver's CUDA, numpy, ml_dtypes and pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-bench/results}
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
code=0
python3 -m gpucast info --json >"$out/gpu-info.json" || code=1
python3 -m gpucast info | tail -n 1
python3 -m pytest -q -m gpu -p no:cacheprovider tests/test_gpu.py || code=1
python3 -m gpucast parity --backend gpu --full --random 1000000 --json "$out/gpu-parity.json" --picture "$out/gpu-parity.svg" || code=1
exit "$code"
