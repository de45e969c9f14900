#!/usr/bin/env bash
# Runs everything that must hold before a change is merged, and prints how long each stage took. It installs what it
# needs into the cache (see setup-envtest.sh) and stops at the first stage that fails.
#
#   hack/test.sh         formatting, lints, docs, and every test
#   hack/test.sh --all   also the measurements: instruction counts, growth of allocations, fuzzing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "$*" in
  "") all=false ;;
  --all) all=true ;;
  *)
    echo "usage: hack/test.sh [--all]" >&2
    exit 2
    ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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

# The peer is a workspace of its own.
formatting() {
  cargo fmt --all --check && cargo fmt --manifest-path benches/peers/kube-runtime/Cargo.toml --check
}

# The integration targets are named, because --all-targets leaves out targets that a plain cargo test does not run.
clippy() {
  cargo clippy --workspace --all-targets --locked -- -D warnings &&
    cargo clippy --test integration --locked -- -D warnings
}

docs() {
  RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
}

# tested ARGUMENTS...: runs cargo test, prints the time of each test, and records it.
tested() {
  cargo test --locked --no-fail-fast --config "target.'cfg(all())'.runner = '$PWD/hack/timed.sh'" "$@" 2>&1 |
    tee -a "$work/tests"
}

control_plane() {
  wait "$setup" || return
  KUBEBUILDER_ASSETS=$(tail -n 1 "$work/assets")
  export KUBEBUILDER_ASSETS
  echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS"
}

# Most of these tests wait most of the time, so many of them run at once. The output of passing tests is shown for the
# figures of those that count something.
integration() {
  tested --test integration -- --test-threads=16 --show-output
}

measurements() {
  hack/instructions.sh && tested --package reknit-benches && tested --package webhook-fuzz && hack/fuzz.sh
}

slowest() {
  printf '\n=== the ten slowest tests\n'
  sed -nE 's/^test (.*[^ ]) +\.\.\. .*<([0-9.]+)s>$/\2 s  \1/p' "$work/tests" | sort -rn | sed -n 1,10p
}

# Downloads or builds the control plane while cargo compiles.
hack/setup-envtest.sh >"$work/assets" &
setup=$!

stage formatting formatting
stage shellcheck hack/shellcheck.sh
stage clippy clippy
# The libraries also have to build with the oldest version of Kubernetes that they support.
stage "oldest version" cargo check --locked -p reknit-sharedmain -p reknit-testing --features k8s-openapi/v1_33
stage docs docs
# Checks that every crate can be published: its manifest, and the files that it is packed with. Whether the packed
# files compile would take minutes: omit --no-verify to check that.
stage packages cargo package --workspace --locked --offline --no-verify --allow-dirty
stage "unit tests" tested
stage "control plane" control_plane
stage "integration tests" integration
if $all; then stage measurements measurements; fi

slowest
printf '\nall passed in %d s\n' $((SECONDS - started))
