#!/usr/bin/env bash
# Builds grpcurl, an independent gRPC client, from its Go module into the cache, ${XDG_CACHE_HOME:-~/.cache}/reknit,
# and prints its path as its last line: about a minute the first time. The script uses module and build caches of its
# own for Go, and removes them afterwards.
set -euo pipefail

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

# Moved into place only when complete, so that two concurrent runs do not disturb each other.
build() {
  local work
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.new.XXXXXX")
  # shellcheck disable=SC2064 # the name as it is now
  trap "rm -rf '$work'" EXIT
  find_go "$work" || die "no Go and no python3 with pip to build grpcurl with: install Go from https://go.dev/dl"
  say "building grpcurl $version from its Go module"
  env -u GOOS -u GOARCH GOWORK=off GOTOOLCHAIN=auto CGO_ENABLED=0 GOFLAGS=-modcacherw GOBIN="$work" \
    GOMODCACHE="$work/modules" GOCACHE="$work/objects" \
    go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$version" >"$work/log" 2>&1 ||
    die "grpcurl $version cannot be built; is a Go module proxy in reach? $(tail -n 1 "$work/log")"
  mv -f "$work/grpcurl" "$program"
}

[ -x "$program" ] || build
printf '%s\n' "$program"
