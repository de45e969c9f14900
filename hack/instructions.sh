#!/usr/bin/env bash
# Counts the instructions of fixed scenarios on one thread, under valgrind's callgrind, and compares the counts with
# benches/instructions.txt. The counts show a loss of speed even on a busy machine.
#
#   hack/instructions.sh              fails if a scenario takes over a tenth more than recorded, or grows faster than
#                                     n log n
#   hack/instructions.sh --record     records the counts instead
#
# The record is valid for one target and one toolchain, which it names. With others, or without valgrind, the script
# prints that it compares nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

record=benches/instructions.txt
tolerance=10 # percent; hash seeds and the processor's string instructions move the counts by less than one
# The name, the size, and a second size to measure the growth.
scenarios='passes 2000 200
list 5000 500
relist 5000 500
queue 20000 2000
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

built_for=$(rustc -vV | sed -n 's/^host: //p; s/^release: /rustc /p' | sort -r | paste -sd ' ')
if ! command -v valgrind >/dev/null; then
  echo "instructions: not counted, there is no valgrind (apt-get install valgrind)"
  exit 0
fi
if ! $recording && ! grep -qsx "# $built_for" "$record"; then
  echo "instructions: not compared, $record is not of $built_for"
  exit 0
fi

target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cargo build --release --locked --package reknit-benches --bin bench-scenario

# count SCENARIO SIZE: prints the number of instructions within `counted`, which is not zero.
count() {
  local out counted
  out=$(valgrind --tool=callgrind --toggle-collect='*bench_scenario*counted*' --callgrind-out-file=/dev/null \
    "$target/release/bench-scenario" "$1" "$2" 2>&1) || {
    echo "$out" >&2
    return 1
  }
  counted=$(sed -n 's/^==[0-9]*== Collected : \([0-9]*\).*/\1/p' <<<"$out")
  if [ "${counted:-0}" -eq 0 ]; then
    echo "instructions: none were counted for $1 $2: is there still a function \`counted\` in bench-scenario?" >&2
    return 1
  fi
  echo "$counted"
}

if $recording; then
  {
    echo "# $built_for"
    echo "# Instructions by scenario and size: hack/instructions.sh --record"
  } >"$record.new"
fi

failed=false
while read -r name size smaller; do
  counted=$(count "$name" "$size")
  of_smaller=$(count "$name" "$smaller")
  printf '%-15s %6d  %12d instructions, %8d each' "$name" "$size" "$counted" $((counted / size))
  # Allows n log n, and a fifth more for setup costs.
  if ! awk -v many="$counted" -v few="$of_smaller" -v n="$size" -v m="$smaller" \
    'BEGIN { exit !(many <= 1.2 * few * (n * log(n)) / (m * log(m))) }'; then
    printf '  GROWS FASTER THAN n log n: %d of %d' "$of_smaller" "$smaller"
    failed=true
  fi
  if $recording; then
    echo "$name $size $counted" >>"$record.new"
  else
    before=$(awk -v name="$name" -v size="$size" '$1 == name && $2 == size { print $3 }' "$record")
    printf '  %+.1f %%' "$(awk -v a="$counted" -v b="${before:-0}" 'BEGIN { print b ? 100 * (a - b) / b : 0 }')"
    if [ -z "$before" ]; then
      printf '  NOT RECORDED'
      failed=true
    elif ((counted * 100 > before * (100 + tolerance))); then
      printf '  MORE THAN %d %% ABOVE THE RECORD' "$tolerance"
      failed=true
    fi
  fi
  echo
done <<<"$scenarios"

if $recording; then mv "$record.new" "$record"; fi
if $failed; then
  echo "instructions: see above; where the change is worth it: hack/instructions.sh --record" >&2
  exit 1
fi
