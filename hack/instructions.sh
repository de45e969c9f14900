#!/usr/bin/env bash
# Counts the instructions of fixed scenarios on one thread, with valgrind's callgrind, and compares the counts with
# benches/instructions.txt. Unlike times, the counts show a regression even on a busy machine.
#
#   hack/instructions.sh              fails if a scenario needs over a tenth more instructions than recorded, or if
#                                     their number grows faster than n log n, or if all scenarios together need over
#                                     15 % more than in benches/instructions-2026-11.txt, without those it lacks
#   hack/instructions.sh --record     records the counts instead
#
# The record names the target and the toolchain that it is valid for. With another target or toolchain, or without
# valgrind, the script compares nothing and says so.
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

record=benches/instructions.txt
# Counts that are never recorded again, so that many small increases cannot add up unseen.
first_record=benches/instructions-2026-11.txt
first_tolerance=15 # percent, of the sum over all scenarios
tolerance=10 # percent; hash seeds and the processor's string instructions change the counts by less than one percent
# The name, the size, and a smaller size to measure the growth.
scenarios='passes 2000 200
list 5000 500
relist 5000 500
queue 20000 2000
queue-one-namespace 20000 2000
tracker-shared 1000 100
tracker-each 1000 100
conditions 20000 2000
buckets 5000 500'

recording=false
case "${1-}" in
  "") ;;
  --record) recording=true ;;
  *)
    echo "usage: hack/instructions.sh [--record]" >&2
    exit 2
    ;;
esac

platform=$(rustc -vV | sed -n 's/^host: //p; s/^release: /rustc /p' | sort -r | paste -sd ' ')
if ! command -v valgrind >/dev/null; then
  echo "instructions: not counted, because valgrind is not installed (apt-get install valgrind)"
  exit 0
fi
if ! $recording && ! grep -qsx "# $platform" "$record"; then
  echo "instructions: not compared, because $record was not recorded with $platform"
  exit 0
fi

target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cargo build --release --locked --package reknit-benches --bin bench-scenario

# count SCENARIO SIZE: prints the number of instructions within the function `counted`. Fails if the number is 0.
count() {
  local output counted
  output=$(valgrind --tool=callgrind --toggle-collect='*bench_scenario*counted*' --callgrind-out-file=/dev/null \
    "$target/release/bench-scenario" "$1" "$2" 2>&1) || {
    echo "$output" >&2
    return 1
  }
  counted=$(sed -n 's/^==[0-9]*== Collected : \([0-9]*\).*/\1/p' <<<"$output")
  if [ "${counted:-0}" -eq 0 ]; then
    echo "instructions: none were counted for $1 $2; check that bench-scenario has a function \`counted\`" >&2
    return 1
  fi
  echo "$counted"
}

if $recording; then
  {
    echo "# $platform"
    echo "# Instructions by scenario and size: hack/instructions.sh --record"
  } >"$record.new"
fi

failed=false
total=0
while read -r name size smaller_size; do
  counted=$(count "$name" "$size")
  if grep -q "^$name " "$first_record"; then total=$((total + counted)); fi
  counted_smaller=$(count "$name" "$smaller_size")
  printf '%-19s %6d  %12d instructions, %8d each' "$name" "$size" "$counted" $((counted / size))
  # Allows n log n, and a fifth more for setup costs.
  if ! awk -v many="$counted" -v few="$counted_smaller" -v n="$size" -v m="$smaller_size" \
    'BEGIN { exit !(many <= 1.2 * few * (n * log(n)) / (m * log(m))) }'; then
    printf '  GROWS FASTER THAN n log n: %d instructions for size %d' "$counted_smaller" "$smaller_size"
    failed=true
  fi
  if $recording; then
    echo "$name $size $counted" >>"$record.new"
  else
    recorded=$(awk -v name="$name" -v size="$size" '$1 == name && $2 == size { print $3 }' "$record")
    printf '  %+.1f %%' "$(awk -v a="$counted" -v b="${recorded:-0}" 'BEGIN { print b ? 100 * (a - b) / b : 0 }')"
    if [ -z "$recorded" ]; then
      printf '  NOT RECORDED'
      failed=true
    elif ((counted * 100 > recorded * (100 + tolerance))); then
      printf '  MORE THAN %d %% ABOVE THE RECORD' "$tolerance"
      failed=true
    fi
  fi
  echo
done <<<"$scenarios"

if grep -qsx "# $platform" "$first_record"; then
  first_total=$(awk '!/^#/ { sum += $3 } END { printf "%d", sum }' "$first_record")
  printf '%-22s  %12d instructions, %+.1f %% of %s\n' "all scenarios" "$total" \
    "$(awk -v a="$total" -v b="$first_total" 'BEGIN { print 100 * (a - b) / b }')" "$first_record"
  if ((total * 100 > first_total * (100 + first_tolerance))); then
    echo "instructions: more than $first_tolerance % above $first_record in sum, which recording cannot change" >&2
    failed=true
  fi
fi

if $recording; then mv "$record.new" "$record"; fi
if $failed; then
  echo "instructions: see above; to accept the new counts, run hack/instructions.sh --record" >&2
  exit 1
fi
