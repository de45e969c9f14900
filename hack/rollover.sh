#!/usr/bin/env bash
# Rolls replicas of the sample controller from another commit to this checkout and back, under load, and checks that no key
# is led twice, no finalizer is lost, and no child is written that did not change. Takes five minutes, most of them for
# compiling.
#
#   hack/rollover.sh COMMIT
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# = 1 ] || {
  echo "usage: hack/rollover.sh COMMIT" >&2
  exit 2
}
commit=$(git rev-parse --verify "$1^{commit}")
folder=$PWD/target/rollover

rm -rf "$folder/source"
mkdir -p "$folder/source"
git archive "$commit" | tar -xC "$folder/source"
cargo build --locked --manifest-path "$folder/source/Cargo.toml" --target-dir "$folder/target" --bin controller

KUBEBUILDER_ASSETS=$(hack/setup-envtest.sh | tail -n 1)
export KUBEBUILDER_ASSETS OTHER_RELEASE=$folder/target/debug/controller
cargo test --locked --test integration availability::releases:: -- --ignored --show-output
