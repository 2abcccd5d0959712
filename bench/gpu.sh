#!/usr/bin/env bash
# Everything that needs a GPU, the most valuable first (see bench/GPU.md). The first half hour: the extension module,
# which launches for users; a cast of each library; every family of device calls against the host's bits, at odd
# addresses too, each in a process of its own because an error of a GPU stays with its process; the same under memcheck;
# the tests; what users write; ten kernels under ncu. Then all the rest. What a step finds is in its file at once; a
# second run of the same code goes on where the first one ended. With --list it only names the steps.
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
list=0
[ "${1:-}" = --list ] && list=1
# Names the GPU and the code; without a GPU it says why.
stem=GPU
[ $list = 1 ] || stem=$("$python" -m bench.gpu.stem) || exit 1
summary=()
failed=0
PATH=$PATH:/usr/local/cuda/bin

# step NAME COMMAND...: runs it unless it has passed, and keeps what it says in NAME-STEM.log.
step() {
    local name=$1
    shift
    if [ $list = 1 ]; then
        echo "$name: $*"
        return
    fi
    local log=$results/$name-$stem.log
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

# with TOOL NAME COMMAND...: a step that needs a tool of CUDA's.
with() {
    if [ $list = 0 ] && ! command -v "$1" >/dev/null; then
        summary+=("$2: left out, $1 is not installed")
        return
    fi
    step "${@:2}"
}

bench() { "$python" -m bench --results "$results" "$@"; }
parity() { "$python" -m gpucast parity --backend gpu "$@"; }
# Only files with tests of the GPU, because others may import packages that are not installed here. Other versions of
# packages may emit warnings, which must not be errors. Where all are skipped, pytest has no complaint.
tests() {
    # The families have steps of their own.
    grep -rl --include='test_*.py' 'mark\.gpu' tests | grep -v test_device_calls |
        xargs "$python" -m pytest -q -m gpu -p no:cacheprovider -W default | tee /dev/stderr | grep '[0-9] passed'
}
# sanitize TOOL MODULE...: a module under a tool of compute-sanitizer.
sanitize() {
    local tool=$1
    shift
    compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name kns=gpucast_ "$python" -m "$@"
}
# Counters of the third launch of each kernel; memory and clocks are warm by then.
profile() { ncu --set full --kernel-id '::regex:^gpucast_:3' --page details "$python" -m bench.gpu.profiled; }
families=$("$python" -m bench.gpu.families --names) || exit 1

# Quick where it is there. Without it calls take longer, and what users see is not what is measured.
[ $list = 1 ] || "$python" -m gpucast.host.build || { summary+=("module: FAILED, see above"); failed=1; }
step machine nvidia-smi
step info "$python" -m gpucast info
step libraries "$python" -m bench.gpu.libraries
step quick bench --quick
for family in $families; do
    step "family-$family" "$python" -m bench.gpu.families "$family"
done
for family in $families; do
    with compute-sanitizer "memcheck-$family" sanitize memcheck bench.gpu.families "$family"
done
step tests tests
step users bench --users
with ncu counters profile
with compute-sanitizer memcheck sanitize memcheck bench.gpu.sweep --kernels
step bench bench
step parity parity --full --random 200000 --json "$results/parity-$stem.json" --picture "$results/parity-$stem.svg"
step layouts "$python" -m bench.gpu.sweep
for type in FLOAT8E4M3FN FLOAT16 BFLOAT16 FLOAT4E2M1 FLOAT8E5M2 FLOAT8E8M0 FLOAT8E4M3FNUZ FLOAT8E5M2FNUZ; do
    step "codes-$type" parity --exhaustive --defaults-only --pair "FLOAT:$type"
done
for tool in racecheck initcheck; do
    with compute-sanitizer "$tool" sanitize "$tool" bench.gpu.sweep --kernels
    for family in $families; do
        with compute-sanitizer "$tool-$family" sanitize "$tool" bench.gpu.families "$family" --aligned
    done
done
[ $list = 1 ] && exit 0
printf '%s\n' "== summary" "${summary[@]}"
exit "$failed"
