#!/usr/bin/env bash
# Everything that needs a GPU, the most valuable first (see bench/GPU.md): the extension module, which launches for
# users, is built where it is missing; then what users write, the tests, the benchmark, every rule against the reference,
# misaligned arrays, all 2^32 codes of FLOAT, compute-sanitizer. What a step finds is in its file at once; a second run of
# the same code goes on where the first one ended.
# PYTHON (python3) must have CuPy for the driver's CUDA, numpy, ml_dtypes and pytest. RESULTS (bench/results): where the
# files go. GPUCAST_COMMIT: names the commit where there is no git. The exit code is 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
# Else JAX takes three quarters of the memory in every process that imports it.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
# Room for all kernels of all steps, so that none is compiled twice.
export GPUCAST_CACHE_SIZE=${GPUCAST_CACHE_SIZE:-1024}
python=${PYTHON:-python3}
results=${RESULTS:-bench/results}
mkdir -p "$results" || exit 1
# Names the GPU and the code; without a GPU it says why.
stem=$("$python" -m bench.gpu.stem) || exit 1
summary=()
failed=0

# step NAME COMMAND...: runs it unless it has passed, and keeps what it says in NAME-STEM.log.
step() {
    local name=$1 log=$results/$1-$stem.log
    shift
    if [ -e "$log" ] && [ "$(tail -n 1 "$log")" = "== passed" ]; then
        summary+=("$name: passed earlier, not run again")
        return
    fi
    echo "== $*" | tee -a "$log"
    if "$@" 2>&1 | tee -a "$log"; then
        echo "== passed" >>"$log"
        summary+=("$name: passed")
    else
        summary+=("$name: FAILED, see $log")
        failed=1
    fi
    echo "== ${summary[-1]}"
}

bench() { "$python" -m bench --results "$results" "$@"; }
parity() { "$python" -m gpucast parity --backend gpu "$@"; }
# Only files with tests of the GPU, because others may import packages that are not installed here. Other versions of
# packages may emit warnings, which must not be errors. Where all are skipped, pytest has no complaint.
tests() {
    grep -rl --include='test_*.py' 'mark\.gpu' tests | xargs "$python" -m pytest -q -m gpu -p no:cacheprovider -W default |
        tee /dev/stderr | grep '[0-9] passed'
}
sanitize() { compute-sanitizer --tool "$1" --error-exitcode 9 --kernel-name kns=gpucast_ "$python" -m bench.gpu.sweep --kernels; }

# Quick where it is there. Without it calls take longer, and what users see is not what is measured.
"$python" -m gpucast.host.build || { summary+=("module: FAILED, see above"); failed=1; }
step users bench --users
step tests tests
step bench bench
step parity parity --full --random 200000 --json "$results/parity-$stem.json" --picture "$results/parity-$stem.svg"
step layouts "$python" -m bench.gpu.sweep
for type in FLOAT8E4M3FN FLOAT16 BFLOAT16 FLOAT4E2M1 FLOAT8E5M2 FLOAT8E8M0 FLOAT8E4M3FNUZ FLOAT8E5M2FNUZ; do
    step "codes-$type" parity --exhaustive --defaults-only --pair "FLOAT:$type"
done
PATH=$PATH:/usr/local/cuda/bin
for tool in memcheck racecheck initcheck; do
    step "$tool" sanitize "$tool"
done
printf '%s\n' "== summary" "${summary[@]}"
exit "$failed"
