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
<<<<<<< 0ebf6748bb35bfde0c90fe76ba609b9f262f9c03
mkdir -p "$out"

order=(tests parity quick sanitizer sweeps many quantize bench)
# Seconds of each part where all are run in 570; what one part leaves is shared by those behind it.
declare -A share=([tests]=70 [parity]=110 [quick]=50 [sanitizer]=80 [sweeps]=50 [many]=40 [quantize]=40 [bench]=110)
sweep_to=(FLOAT16 BFLOAT16 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0 FLOAT4E2M1)

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=("${order[@]}")
for part in "${parts[@]}"; do
  if [ -z "${share[$part]:-}" ]; then
    echo "bench/gpu.sh: $part is no part; expected some of ${order[*]}" >&2
    exit 2
  fi
done

gpu=$("$python" -m gpucast info --json | "$python" -c '
import json, re, sys
found = json.load(sys.stdin)
print(found["verdict"], file=sys.stderr)
name = found["devices"][0].split(" ", 1)[1] if found["gpu_casts"] else ""
print(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"))')
if [ -z "$gpu" ]; then
  echo "bench/gpu.sh: there is no GPU that gpucast can use" >&2
  exit 1
fi
stamp=$gpu-$(date -u +%Y-%m-%d-%H%M%S)

code=0
summary=()
# limited NAME SECONDS COMMAND...: run it, keep what it prints, note how it ended.
limited() {
  local name=$1 limit=$2 begin=$SECONDS status
  shift 2
  echo "== $name (up to $limit s): $*"
  timeout -k 10 "$limit" "$@" 2>&1 | tee -a "$out/gpu-$name-$stamp.log"
  status=${PIPESTATUS[0]}
  case $status in
    0) summary+=("$name: passed, $((SECONDS - begin)) s") ;;
    124 | 137) summary+=("$name: OUT OF TIME, $((SECONDS - begin)) s"); code=1 ;;
    *) summary+=("$name: FAILED ($status), $((SECONDS - begin)) s"); code=1 ;;
  esac
  return 0
}

run_tests() {
  local jobs=()
  "$python" -c 'import xdist' 2>/dev/null && jobs=(-n 8)
  # Only files with such tests: others import what is not needed here.
  local files
  mapfile -t files < <(grep -rl --include='test_*.py' 'mark\.gpu' tests)
  # Packages of other versions than ours may warn.
  limited tests "$1" "$python" -m pytest -q -m gpu -p no:cacheprovider -W default --continue-on-collection-errors \
    "${jobs[@]}" "${files[@]}"
}

run_parity() {
  limited parity "$1" "$python" -m gpucast parity --backend gpu --full --random "${GPU_RANDOM:-200000}" --no-progress \
    --json "$out/gpu-parity-$stamp.json" --picture "$out/gpu-parity-$stamp.svg"
}

run_quick() {
  limited quick "$1" "$python" -m gpucast bench --quick --json "$out/gpu-quick-$stamp.json"
}

run_sanitizer() {
  local tool each=$(($1 / 3)) sanitizer
  sanitizer=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer || "$python" -c '
import glob, sys
print(next((path for folder in sys.path for path in glob.glob(f"{folder}/nvidia/**/compute-sanitizer", recursive=True)), ""))')
  if [ -z "$sanitizer" ]; then
    summary+=("sanitizer: LEFT OUT, compute-sanitizer is not on PATH, in /usr/local/cuda/bin or in a wheel")
    code=1
    return
  fi
  for tool in memcheck racecheck initcheck; do
    limited "$tool" "$each" "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$python" -m bench.gpu_sweep --seconds $((each > 40 ? each - 25 : each / 2))
  done
}

run_sweeps() {
  local dst stop=$((SECONDS + $1)) number=0
  for dst in "${sweep_to[@]}"; do
    if [ $((stop - SECONDS)) -lt 5 ]; then
      summary+=("sweeps: OUT OF TIME, $number of ${#sweep_to[@]} were begun")
      code=1
      return
    fi
    limited "sweep-${dst,,}" $((stop - SECONDS)) "$python" -m gpucast parity --backend gpu --exhaustive --defaults-only \
      --pair "FLOAT:$dst" --no-progress --json "$out/gpu-sweep-${dst,,}-$stamp.json"
    number=$((number + 1))
  done
}

run_many() {
  limited many "$1" "$python" -m bench --many --json "$out/gpu-many-$stamp.json"
}

run_quantize() {
  limited quantize "$1" "$python" -m bench --quantize --json "$out/gpu-quantize-$stamp.json"
}

run_bench() {
  # The start, and tables and pictures at the end, are not measuring.
  limited bench "$1" "$python" -m bench --results "$out" --budget-s $(($1 > 90 ? $1 - 45 : $1 / 2 + 1))
}

# Compiled side by side beforehand, kernels cost the parts no time.
limited warmup $((end - SECONDS > 240 ? 120 : (end - SECONDS) / 2 + 1)) "$python" -m gpucast warmup --no-progress
for part in "${order[@]}"; do
  case " ${parts[*]} " in *" $part "*) ;; *) continue ;; esac
  rest=0
  for other in "${order[@]}"; do
    case " ${parts[*]} " in *" $other "*) rest=$((rest + ${share[$other]})) ;; esac
  done
  left=$((end - SECONDS))
  limit=$((left > 0 ? left * ${share[$part]} / rest : 0))
  share[$part]=0
  if [ "$limit" -lt 5 ]; then
    summary+=("$part: LEFT OUT, no time")
    code=1
    continue
  fi
  "run_$part" "$limit"
done

commit=$("$python" -c 'from bench.revision import code_digest, commit; print(f"commit {commit()}, code {code_digest()}")')
printf '%s\n' "== summary ($gpu, $commit)" "${summary[@]}" | tee "$out/gpu-summary-$stamp.txt"
exit "$code"
=======
# Else JAX takes three quarters of the memory in every process that imports it.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
export PYTHON=${PYTHON:-python3}
exec "$PYTHON" -m bench.gpu_run "$@"
>>>>>>> d1c408d3472f0247c1ef23345305317afaeb61f5
