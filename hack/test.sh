#!/usr/bin/env bash
# Runs all checks that have to pass before a change is merged, and prints how long each stage took. It installs the
# programs that it needs into ~/.cache/reknit. After a failed stage it goes on with the next one. At the end it lists the
# stages and the tests that failed, and exits with status 1 if there are any.
#
#   hack/test.sh         formatting, lints, docs, and every test
#   hack/test.sh --all   also compiles the packages that would be published, runs the integration tests on the oldest and
#                        on the newest Kubernetes, watches ten minutes for false alarms, runs the measurements: upgrades,
#                        instruction counts, growth of allocations, fuzzing, 2,000 seeds of each simulation, and the
#                        faults that simulations must find, tests the console in a browser, and lets a real
#                        Prometheus evaluate dashboards and alerts
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
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

# stage NAME COMMAND...: runs the command, and prints the time that it took. Notes the stage if the command fails, with
# the tests that failed in it.
stage() {
  local name=$1 began=$SECONDS
  shift
  printf '\n=== %s: %s\n' "$name" "$*"
  : >"$work/tests"
  if "$@"; then
    printf '=== %s: passed in %d s\n' "$name" $((SECONDS - began))
  else
    printf '=== %s: FAILED after %d s\n' "$name" $((SECONDS - began)) >&2
    printf '%s\n' "$name" >>"$work/failures"
    failed_tests >>"$work/failures"
  fi
  cat "$work/tests" >>"$work/all-tests"
}

# Lists the tests of this stage that failed, each with the first lines of its message, which are far up in the output.
# Cargo's summary of their targets comes last: a target that crashes names no test.
failed_tests() {
  awk '
    /^test .* \.\.\. FAILED/ { sub(/^test /, ""); sub(/ +\.\.\. FAILED.*/, ""); failed[++count] = $0; next }
    /^---- .* ----$/ { sub(/^---- /, ""); sub(/( stdout)? ----$/, ""); name = $0; lines = 0; failure = 0; next }
    /^(failures|successes):$/ { name = "" }
    /^ *([0-9]+: |at )|^stack backtrace:|^note: |^$/ { next }
    /^thread .* panicked at|^Error: / && !failure { failure = 1; lines = 0; message[name] = "" }
    name != "" && lines++ < 15 { message[name] = message[name] "        " substr($0, 1, 400) "\n" }
    /^    .-p .*.$/ { targets = targets "    in " substr($0, 6, length($0) - 6) "\n" }
    END {
      for (i = 1; i <= count; i++) printf "    %s\n%s", failed[i], message[failed[i]]
      printf "%s", targets
    }
  ' "$work/tests"
}

# The peer kube-runtime is a workspace of its own.
formatting() {
  cargo fmt --all --check && cargo fmt --manifest-path benches/peers/kube-runtime/Cargo.toml --check
}

# --all-targets leaves out the integration targets, because a plain cargo test does not run them.
clippy() {
  cargo clippy --workspace --all-targets --locked -- -D warnings &&
    cargo clippy --test integration --locked -- -D warnings
}

docs() {
  RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --features reknit/simulation
}

# run_tests ARGUMENTS...: runs cargo test, prints the time of each test, and records it.
run_tests() {
  cargo test --locked --no-fail-fast --config "target.'cfg(all())'.runner = '$PWD/hack/timed.sh'" "$@" 2>&1 |
    tee -a "$work/tests"
}

# Waits for hack/setup-envtest.sh, and exports the folder that it printed.
control_plane() {
  wait "$setup" || return
  KUBEBUILDER_ASSETS=$(tail -n 1 "$work/assets")
  export KUBEBUILDER_ASSETS
  echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS"
}

# Many tests run at once, because they wait most of the time. The output of passing tests is shown for the figures that
# some of them print.
integration() {
  run_tests --test integration -- --test-threads=16 --show-output "$@"
}

# integration_on VERSION ARGUMENTS...: runs the integration tests on this version of Kubernetes. The in-memory API server
# has the messages of one version.
integration_on() {
  local assets
  assets=$(hack/setup-envtest.sh --version "$1" | tail -n 1) || return
  KUBEBUILDER_ASSETS=$assets integration --skip same_responses:: "${@:2}"
}

# Each of these tests runs up to five replicas and checks times of a second or two, so few run at once.
availability() {
  run_tests --test integration availability:: -- --ignored --skip releases:: --test-threads=2 --show-output
}

# What is no storm and no fight, for ten minutes.
false_alarms() {
  run_tests --package reknit-reconciler --test integration false_alarms:: -- --ignored --show-output
}

# The cost of plans, and an upgrade of many children with the brake. The first counts the writes of the whole API server, so
# they run one after the other.
upgrades() {
  run_tests --package reknit-sharedmain --test integration -- --ignored --test-threads=1 --show-output
}

# Growth of allocations, and the fuzz targets with random inputs.
growth() {
  run_tests --package reknit-benches --package webhook-fuzz
}

# Checks that each crate can be published: its manifest and its list of files. --all also compiles the packaged files,
# which takes minutes.
packages() {
  local options=(--workspace --locked --offline --allow-dirty) unpublished
  for unpublished in examples reknit-benches reknit-samples webhook-fuzz; do
    options+=(--exclude "$unpublished")
  done
  if ! $all; then options+=(--no-verify); fi
  # A library enables no version of k8s-openapi: the program that uses it does.
  K8S_OPENAPI_ENABLED_VERSION=1.36 cargo package "${options[@]}"
}

slowest() {
  printf '\n=== the ten slowest tests\n'
  sed -nE 's/^test (.*[^ ]) +\.\.\. .*<([0-9.]+)s>$/\2 s  \1/p' "$work/all-tests" | sort -rn | sed -n 1,10p
}

# Downloads or builds the control plane while cargo compiles.
hack/setup-envtest.sh >"$work/assets" &
setup=$!

stage formatting formatting
stage "mutants apply" git apply --check simulation/mutants.patch
stage shellcheck hack/shellcheck.sh
stage clippy clippy
# The libraries also have to build with the oldest version of Kubernetes that they support, which a feature selects.
stage "oldest version" cargo check --locked -p reknit --features k8s-openapi/v1_33
stage docs docs
stage packages packages
stage "unit tests" run_tests
stage "control plane" control_plane
if grep -qsx "control plane" "$work/failures"; then
  echo "    the integration and availability tests did not run" >>"$work/failures"
else
  stage "integration tests" integration
  stage availability availability
fi
if $all; then
  stage "oldest Kubernetes" integration_on v1.33
  stage "newest Kubernetes" integration_on v1.37
  stage "false alarms" false_alarms
  stage upgrades upgrades
  stage browser hack/browser.sh
  stage prometheus hack/prometheus.sh
  stage instructions hack/instructions.sh
  stage growth growth
  stage fuzzing hack/fuzz.sh
  stage simulations hack/simulate.sh --seeds 2000
  stage mutants hack/mutants.sh
fi

slowest
if [ -e "$work/failures" ]; then
  printf '\n=== FAILED after %d s\n' $((SECONDS - started)) >&2
  cat "$work/failures" >&2
  exit 1
fi
printf '\nall passed in %d s\n' $((SECONDS - started))
