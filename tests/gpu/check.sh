#!/usr/bin/env bash
# All that only a GPU can show, in one command of at most eight minutes, without a network, in the root of the checkout:
#
#   bash tests/gpu/check.sh                   # on a machine with a GPU, CuPy and smimbench's packages
#   bash tests/gpu/check.sh pack FOLDER       # before, where there is a package index: wheels for a bare machine
#   WHEELS=FOLDER bash tests/gpu/check.sh     # there, with that folder carried along
#
# It runs `pytest -m gpu` and prints table.py's table: iterations against matrix products and memory of the GPU, and against this
# processor. Logs are left in the folder $OUT (default: a temporary one). PARTS picks parts ("tests table"), SIZES the dimensions of
# the table, LIMIT is the time for all of it in seconds. A second run is shorter: CuPy finds the kernels that it has compiled.
# Exit code 0: every test passed, and the estimates of GPU and processor agree in every row.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [ "${1:-}" = pack ]; then
  to=${2:?where to}
  mkdir -p "$to"
  python3 -m pip wheel -q --no-deps -w "$to" . || exit
  # what a GPU image usually lacks; CuPy, NumPy, SciPy, pytest and the like it has
  exec python3 -m pip download -q --no-deps --only-binary=:all: --python-version "${PYTHON_VERSION:-3.12}" --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$to" \
    pydantic pydantic-core annotated-types typing-inspection typing-extensions array-api-compat array-api-strict pluggy tomli-w
fi

OUT=${OUT:-$(mktemp -d)} LIMIT=${LIMIT:-480} PARTS=${PARTS:-tests table}
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1
failed=()

if [ -n "${WHEELS:-}" ]; then
  site=$(mktemp -d)
  python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$WHEELS"/*.whl || exit 1
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi

if [[ $PARTS == *tests* ]]; then
  parallel=()
  python3 -c "import xdist" 2>/dev/null && parallel=(-n "${JOBS:-8}" --dist worksteal) # the time goes into compiling kernels
  OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 timeout -k 5 $((LIMIT / 2)) \
    python3 -m pytest -m gpu -q "${parallel[@]}" -p no:cacheprovider >"$OUT/gpu-tests.log" 2>&1 || failed+=(tests)
  grep -E "^(FAILED|ERROR)|passed|failed" "$OUT/gpu-tests.log" | tail -n 40
fi

if [[ $PARTS == *table* ]]; then
  left=$((LIMIT - SECONDS))
  timeout -k 5 "$left" python3 "$here/table.py" --backend "${BACKEND:-cupy}" --seconds $((left - 20)) ${SIZES:+--sizes $SIZES} |
    tee "$OUT/table.md" || failed+=(table)
fi
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}; see $OUT"; exit 1; }
