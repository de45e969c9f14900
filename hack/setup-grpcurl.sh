#!/usr/bin/env bash
# Builds grpcurl, an independent gRPC client, from its Go module into the cache, ${XDG_CACHE_HOME:-~/.cache}/reknit,
# and prints its path as its last line: about a minute the first time. The script uses module and build caches of its
# own for Go, and removes them afterwards.
#
#   hack/setup-grpcurl.sh
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# shellcheck source=hack/find-go.sh
source "$(dirname "${BASH_SOURCE[0]}")/find-go.sh"

version=v1.9.3
cache=${XDG_CACHE_HOME:-${HOME:?is not set, and neither is XDG_CACHE_HOME}/.cache}/reknit/grpcurl
program=$cache/grpcurl-$version

say() { printf 'setup-grpcurl: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

[ -x "$program" ] || build_program "$program" "github.com/fullstorydev/grpcurl/cmd/grpcurl@$version"
printf '%s\n' "$program"
