#!/usr/bin/env bash
# Runs the sample against a local API server by `cargo reknit dev`: the controller and the webhook, each as its own service
# account, until Ctrl-C. Prints the example objects whenever they change. With --once it exits when the AddressableService
# is Ready and the SimpleDeployment reports that it is not: it never is, because there are no nodes. Everything
# listens on free ports of 127.0.0.1 and is removed afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage="usage: hack/run-local.sh [--once]    # until Ctrl-C, or --once: until the examples have their status"
once=()
for argument in "$@"; do
  case "$argument" in
    --once) once=("--once=AddressableService/hello,SimpleDeployment/hello=False") ;;
    --help)
      echo "$usage"
      exit
      ;;
    *)
      echo "unknown argument $argument; $usage" >&2
      exit 2
      ;;
  esac
done

echo "looking for kube-apiserver and etcd; if they cannot be downloaded, they are built once, which takes minutes"
KUBEBUILDER_ASSETS=$(hack/setup-envtest.sh --control-plane | tail -n 1)
export KUBEBUILDER_ASSETS

# Building the whole workspace and an example too selects the features that cargo test selects, so that cargo reuses what
# that has built.
as_tested=(--example control-plane)
cargo build --bins "${as_tested[@]}"
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cd samples
exec "$target/debug/cargo-reknit" dev "${once[@]}" -- --manifest-path ../Cargo.toml "${as_tested[@]}"
