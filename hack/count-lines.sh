#!/usr/bin/env bash
# Prints the lines of code of these files, or of the Rust and Go files in these folders, and their sum.
#
#   hack/count-lines.sh examples/cronjob
#
# A line counts unless it is blank or only a comment: // and /* */ in Rust and Go, # in YAML.
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

[[ $# -gt 0 ]] || {
  echo "usage: $0 FILE-OR-FOLDER..." >&2
  exit 2
}

files() {
  for path in "$@"; do
    if [[ -d $path ]]; then
      find "$path" -type f \( -name '*.rs' -o -name '*.go' \) -print0 | sort -z
    else
      printf '%s\0' "$path"
    fi
  done
}

# shellcheck disable=SC2016 # awk's variables
files "$@" | xargs -0 awk '
  FNR == 1 { names[++count] = FILENAME; in_block = 0 }
  { line = $0; gsub(/^[ \t]+|[ \t\r]+$/, "", line) }
  !in_block && line ~ /^\/\*/ { in_block = 1 }
  in_block { in_block = line !~ /\*\//; next }
  line == "" || line ~ (FILENAME ~ /\.ya?ml$/ ? "^#" : "^//") { next }
  { lines[FILENAME]++; sum++ }
  END {
    for (i = 1; i <= count; i++) printf "%6d %s\n", lines[names[i]], names[i]
    printf "%6d in all\n", sum
  }'
