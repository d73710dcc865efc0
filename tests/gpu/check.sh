#!/usr/bin/env bash
# Everything that only a GPU can show, in one command of at most ten minutes, without a network, in the root of the checkout:
#
#   OUT=folder bash tests/gpu/check.sh                  # on a machine with a GPU, CuPy and smimbench's packages
#   bash tests/gpu/check.sh pack FOLDER                 # before, where there is a package index: wheels for a bare machine
#   OUT=folder WHEELS=FOLDER bash tests/gpu/check.sh    # there, with that folder carried along
#
# It runs `pytest -m gpu`, a probe of the parts of an iteration (probe.py) and the suite gpu-scale in float64, float32 and mixed
# precision, and leaves under $OUT: summary.txt, gpu-tests.log, probe.json, table.md (table.py) and the records. A second run is
# shorter: it finds the compiled kernels in $CUPY_CACHE_DIR. PARTS picks parts ("tests probe double single mixed"), LIMIT is the
# time for all of it in seconds. Exit code 0: tests, probe and suite did what they should.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [ "${1:-}" = pack ]; then
  to=${2:?where to}
  mkdir -p "$to"
  python3 -m pip wheel -q --no-deps -w "$to" . || exit
  # what a GPU image usually lacks; CuPy, NumPy, SciPy, pytest and the like it has
  exec python3 -m pip download -q --no-deps --only-binary=:all: --python-version "${PYTHON_VERSION:-3.12}" --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$to" \
    pydantic pydantic-core annotated-types typing-inspection typing-extensions array-api-compat array-api-strict pluggy
fi

OUT=${OUT:?a folder for what is found}
LIMIT=${LIMIT:-570} PARTS=${PARTS:-tests probe double single mixed} work=${WORK:-$(mktemp -d)}
mkdir -p "$OUT" "$work"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
export CUPY_CACHE_DIR=${CUPY_CACHE_DIR:-$OUT/cupy-cache} SMIMBENCH_CACHE=${SMIMBENCH_CACHE:-$work/cache}
failed=()
say() { printf '\n=== %s (%d s used)\n' "$*" "$SECONDS" | tee -a "$OUT/summary.txt"; }
wants() { [[ " $PARTS " == *" $1 "* ]]; }
within() { # within SECONDS COMMAND...: no longer than that, nor than is left
  local most=$1 left=$((LIMIT - SECONDS))
  shift
  [ "$most" -lt "$left" ] || most=$left
  [ "$most" -gt 5 ] || { echo "no time left"; return 124; }
  timeout -k 5 "$most" "$@"
}
step() { # step NAME COMMAND...
  local name=$1
  shift
  "$@" || failed+=("$name")
}

if [ -n "${WHEELS:-}" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$work/site" "$WHEELS"/*.whl || exit 1
  export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH}
fi
{ nvidia-smi || echo "no nvidia-smi"; within 60 python3 -m smimbench doctor; } >"$OUT/machine.txt" 2>&1

tests() {
  local parallel=()
  python3 -c "import xdist" 2>/dev/null && parallel=(-n "${JOBS:-8}" --dist worksteal) # the time goes into compiling kernels
  within "${TESTS_S:-240}" python3 -m pytest -m gpu -q "${parallel[@]}" -p no:cacheprovider >"$OUT/gpu-tests.log" 2>&1
  local code=$?
  grep -E "^(FAILED|ERROR)|passed|failed" "$OUT/gpu-tests.log" | tail -n 40 | tee -a "$OUT/summary.txt"
  return $code
}
probe() {
  within "${PROBE_S:-100}" python3 "$here/probe.py" >"$OUT/probe.json" 2>"$OUT/probe.log"
  local code=$?
  grep "^# " "$OUT/probe.log" | tee -a "$OUT/summary.txt"
  return $code
}
suite() { # suite DTYPE SECONDS-PER-CELL SECONDS-IN-ALL; as the one shard of one, which solves no theory: table.py needs none
  within "$3" python3 -m smimbench run "${SUITE:-gpu-scale}" --backend "${BACKEND:-cupy}" --timing --shard 1/1 --results "$OUT/results" \
    --set "run.timeout=$2" --set "run.dtype=$1" >>"$OUT/suite.log" 2>&1
  local code=$?
  [ $code -le 1 ] || return $code # 1: a cell is not ok, and the table says so
}

if wants tests; then say "pytest -m gpu"; step tests tests; fi
if wants probe; then say "probe"; step probe probe; fi
if wants double; then say "gpu-scale, float64"; step float64 suite float64 "${CELL_S:-60}" 150; fi
if wants mixed; then say "gpu-scale, mixed"; step mixed suite mixed "${CELL_S:-30}" 90; fi
if wants single; then say "gpu-scale, float32"; step float32 suite float32 "${CELL_S:-20}" 60; fi
if wants double || wants mixed || wants single; then
  python3 "$here/table.py" "$OUT/results" "$OUT/probe.json" >"$OUT/table.md" || failed+=("table")
  cat "$OUT/table.md"
fi
if [ ${#failed[@]} -gt 0 ]; then say "failed: ${failed[*]}"; exit 1; fi
say "all as it should be"
