#!/usr/bin/env bash
# Fuzzes a target of webhook/fuzz with libFuzzer, guided by coverage, on the pinned stable toolchain. It needs a C++
# compiler. There is no address sanitizer, which stable Rust does not support and which finds little in code without
# `unsafe`. Inputs that fail are written to target/fuzz/found/.
#
#   hack/fuzz.sh [--seconds N] [--jobs N] [TARGET]    by default: 60 seconds, one process, admission; others: watch, url
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: hack/fuzz.sh [--seconds N] [--jobs N] [TARGET]    # by default: 60 seconds, one process, admission" >&2
  exit 2
}

seconds=60
jobs=1
target=admission
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds=${2:?} ;;
    --jobs) jobs=${2:?} ;;
    -*) usage ;;
    *)
      target=$1
      shift
      continue
      ;;
  esac
  shift 2
done

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
RUSTFLAGS="${flags[*]}" CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_INCREMENTAL=0 \
  cargo build --locked --package webhook-fuzz --bin "$target" --features libfuzzer --target "$host" --target-dir target/fuzz

corpus=target/fuzz/corpus/$target
mkdir -p "$corpus" target/fuzz/found
cargo run --quiet --locked --package webhook-fuzz --example seeds -- "$corpus"
arguments=(-max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=10 -print_final_stats=1)
arguments+=(-artifact_prefix=target/fuzz/found/ -dict=webhook/fuzz/review.dict)
[ "$jobs" = 1 ] || arguments+=(-fork="$jobs")
exec "target/fuzz/$host/debug/$target" "${arguments[@]}" "$corpus"
