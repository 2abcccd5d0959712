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
for dst in FLOAT16 BFLOAT16 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0 FLOAT4E2M1; do
  python3 -m gpucast parity --backend gpu --exhaustive --defaults-only --pair "FLOAT:$dst" \
    --json "$out/gpu-sweep-${dst,,}.json" || code=1
done
exit "$code"
