#!/usr/bin/env bash
# Fuzzes the targets of webhook/fuzz with libFuzzer, guided by coverage, on the pinned stable toolchain. It needs a C++
# compiler. There is no address sanitizer, which stable Rust does not support and which finds little in code without
# `unsafe`. Inputs that fail are written to target/fuzz/found/.
#
#   hack/fuzz.sh [--seconds N] [--jobs N] [TARGET...]    by default: 60 seconds for each, one process, all targets
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: hack/fuzz.sh [--seconds N] [--jobs N] [TARGET...]    # by default: 60 seconds for each, one process, all" >&2
  exit 2
}

seconds=60
jobs=1
targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds=${2:?} ;;
    --jobs) jobs=${2:?} ;;
    -*) usage ;;
    *)
      targets+=("$1")
      shift
      continue
      ;;
  esac
  shift 2
done

if [ ${#targets[@]} -eq 0 ]; then
  for file in webhook/fuzz/fuzz_targets/*.rs; do
    targets+=("$(basename "$file" .rs)")
  done
fi

# The flags of cargo-fuzz without the sanitizer. With --target, build scripts and macros are not instrumented.
host=$(rustc -vV | sed -n 's/^host: //p')
flags=(
  --cfg fuzzing -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1
  -Cpasses=sancov-module
  -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
)
bins=()
for target in "${targets[@]}"; do bins+=(--bin "$target"); done
RUSTFLAGS="${flags[*]}" CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_INCREMENTAL=0 \
  cargo build --locked --package webhook-fuzz "${bins[@]}" --features libfuzzer --target "$host" --target-dir target/fuzz

arguments=(-max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=10 -print_final_stats=1)
arguments+=(-artifact_prefix=target/fuzz/found/ -dict=webhook/fuzz/review.dict)
[ "$jobs" = 1 ] || arguments+=(-fork="$jobs")
trap 'exit 130' INT TERM
failed=()
for target in "${targets[@]}"; do
  printf 'fuzzing %s for %d s\n' "$target" "$seconds"
  corpus=target/fuzz/corpus/$target
  mkdir -p "$corpus" target/fuzz/found
  cargo run --quiet --locked --package webhook-fuzz --example seeds -- "$corpus"
  "target/fuzz/$host/debug/$target" "${arguments[@]}" "$corpus" || failed+=("$target")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
