#!/usr/bin/env bash
# Builds grpcurl, an independent gRPC client, from its Go module into the cache, ${XDG_CACHE_HOME:-~/.cache}/reknit,
# and prints its path as its last line: about a minute the first time. The script uses module and build caches of its
# own for Go, and removes them afterwards.
#
#   hack/setup-grpcurl.sh
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

version=v1.9.3
cache=${XDG_CACHE_HOME:-${HOME:?is not set, and neither is XDG_CACHE_HOME}/.cache}/reknit/grpcurl
program=$cache/grpcurl-$version

# shellcheck source=hack/find-go.sh
source "$(dirname "${BASH_SOURCE[0]}")/find-go.sh"

say() { printf 'setup-grpcurl: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# Builds in a temporary folder and moves the program into place, so that two concurrent runs do not disturb each other.
build() {
  local work
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.new.XXXXXX")
  # shellcheck disable=SC2064 # expanded now, because $work is local
  trap "rm -rf '$work'" EXIT
  find_go "$work" || die "neither Go nor python3 with pip is installed: install Go from https://go.dev/dl"
  say "building grpcurl $version from its Go module"
  env -u GOOS -u GOARCH GOWORK=off GOTOOLCHAIN=auto CGO_ENABLED=0 GOFLAGS=-modcacherw GOBIN="$work" \
    GOMODCACHE="$work/modules" GOCACHE="$work/objects" \
    go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$version" >"$work/log" 2>&1 ||
    die "building grpcurl $version failed; check that a Go module proxy is reachable: $(tail -n 1 "$work/log")"
  mv -f "$work/grpcurl" "$program"
}

[ -x "$program" ] || build
printf '%s\n' "$program"
