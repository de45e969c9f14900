#!/usr/bin/env bash
# Compares reknit with kube-runtime, controller-runtime and a bare client, one after the other against the same real API
# server, and prints a table with ratios.
#
#   hack/bench.sh                  minutes: 5,000 objects of each Kind, 10 workers, three runs
#   hack/bench.sh --full           two to four hours: also 50,000 objects, 2 workers, five runs, and memory under
#                                  relists and churn. Of the options below, only --only and --write still have an effect
#   hack/bench.sh --write NAME     also writes benches/results/NAME.json and NAME.svg
#   hack/bench.sh --only NAME,...  measures only these: reknit, kube-runtime, kube-runtime-tuned, controller-runtime,
#                                  controller-runtime-tuned, floor, watching-floor, and by name only reknit-console:
#                                  reknit while the page of its console is open
#
#   --objects N,...     the numbers of objects of each Kind, in ascending order
#   --workers N,...     the numbers of concurrent reconciles or writes
#   --runs N            the number of runs of each candidate
#   --changes SECONDS   the duration of the latency measurement, with 50 new Services a second (10)
#   --memory            also measures memory after a relist and while every Service changes
#
# Run it on a machine that does nothing else meanwhile.
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
programs=$target/deploy

KUBEBUILDER_ASSETS=$(hack/setup-envtest.sh --control-plane | tail -n 1)
export KUBEBUILDER_ASSETS

cargo build --profile deploy --locked --package reknit-benches --bin bench --bin bench-floor --bin bench-reknit
# The same target folder, so that common dependencies are compiled once.
cargo build --profile deploy --locked --manifest-path benches/peers/kube-runtime/Cargo.toml --target-dir "$target"

build_go_peer() (
  cd benches/peers/controller-runtime
  rm -f "$programs/bench-controller-runtime"
  command -v go >/dev/null && CGO_ENABLED=0 go build -o "$programs/bench-controller-runtime" .
)
build_go_peer || echo "controller-runtime is left out: its program cannot be built without Go and its modules" >&2

# The API server and etcd share the processors with the measured programs. With a larger heap they collect garbage less
# often, write a fifth more objects, and disturb the measurement less.
export GOGC=400
# Everything is on 127.0.0.1, which no proxy reaches.
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy
exec "$programs/bench" --programs "$programs" "$@"
