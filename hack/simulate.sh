#!/usr/bin/env bash
# Runs the simulations of the samples, the examples and simulation/ with many seeds, and prints a line for each. After a
# failure it goes on with the next one, prints the reports at the end, and exits with status 1. The whole output is in
# target/simulate.log.
#
#   hack/simulate.sh [--seeds N] [NAME]    by default: 1000 seeds each; NAME: only the simulations whose names contain it
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: hack/simulate.sh [--seeds N] [NAME]    # by default: 1000 seeds each" >&2
  exit 2
}

seeds=1000
if [[ ${1:-} == --seeds && $# -ge 2 ]]; then
  seeds=$2
  shift 2
fi
[[ $# -le 1 && ${1:-} != -* ]] || usage
name=${1:-}

[[ $seeds =~ ^[1-9][0-9]*$ ]] || {
  echo "--seeds $seeds is not a positive number" >&2
  exit 2
}

mkdir -p target
log=target/simulate.log

# One at a time, because each uses all processors. Controllers with a planted bug need no more seeds.
simulations() {
  REKNIT_SIM_SEEDS=$seeds cargo test --locked --profile simulate --no-fail-fast --tests \
    --package reknit-samples --package examples --package reknit-simulation \
    -- "$name" --test-threads=1 --nocapture --skip planted:: --skip determinism:: 2>&1
}

lines='[^ ]+: [0-9]+ runs with .*, no violation|^(violated|again): .*|^two runs of seed .*'
if simulations | tee "$log" | { grep --line-buffered -oE "$lines" || true; }; then
  grep -qE "$lines" "$log" && exit
  echo "no simulation has a name that contains $name" >&2
  exit 1
fi
sed -n '/panicked at/,/^again:/p; /^error/,$p' "$log" >&2
exit 1
