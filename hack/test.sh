#!/usr/bin/env bash
# The test command: everything that must hold before a change is merged. It installs what it needs into the cache
# (see setup-envtest.sh), stops at the first stage that fails, and says how long each one took.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if (($# > 0)); then
  echo "usage: hack/test.sh, which takes no options and runs everything" >&2
  exit 2
fi

started=$SECONDS

# stage NAME COMMAND...
stage() {
  local name=$1 at=$SECONDS
  shift
  printf '\n=== %s: %s\n' "$name" "$*"
  if ! "$@"; then
    printf '=== %s: FAILED after %d s\n' "$name" $((SECONDS - at)) >&2
    exit 1
  fi
  printf '=== %s: passed in %d s\n' "$name" $((SECONDS - at))
}

control_plane() {
  KUBEBUILDER_ASSETS=$(hack/setup-envtest.sh | tail -n 1) || return
  export KUBEBUILDER_ASSETS
  echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS"
}

# The peer is a workspace of its own.
formatting() {
  cargo fmt --all --check && cargo fmt --manifest-path benches/peers/kube-runtime/Cargo.toml --check
}

docs() {
  RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
}

# Cargo runs one test binary after the other; within one, few tests at a time, since some start processes of their
# own. What a passing test prints is shown: the figures of those that count.
integration() {
  cargo test --workspace --locked --no-fail-fast --test '*' -- --test-threads=4 --show-output
}

stage formatting formatting
stage shellcheck hack/shellcheck.sh
stage clippy cargo clippy --workspace --all-targets --locked -- -D warnings
# The libraries build with the oldest version of Kubernetes that they work with, too, and not only with that of the tests.
stage "oldest version" cargo check --locked -p reknit-sharedmain -p reknit-testing --features k8s-openapi/v1_33
stage docs docs
# That every crate could be published: its manifest, and what it is packed with. Not that the packed files compile, which
# takes minutes: leave out --no-verify for that.
stage packages cargo package --workspace --locked --offline --no-verify --allow-dirty
stage "control plane" control_plane
stage instructions hack/instructions.sh
stage "unit tests" cargo test --workspace --locked --no-fail-fast --lib --bins
stage "doc tests" cargo test --workspace --locked --no-fail-fast --doc
stage "parity and integration tests" integration

printf '\nall passed in %d s\n' $((SECONDS - started))
