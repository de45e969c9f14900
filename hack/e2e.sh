#!/usr/bin/env bash
# Builds the image, deploys config/ on a cluster of three nodes, checks how it behaves there, and prints a table of the
# results. The cluster is one of kind if Docker runs. Otherwise it is made of containerd and kubelet in namespaces, which
# needs root on Linux, and changes neither the network nor the firewall of the machine.
#
#   hack/e2e.sh           builds, checks, and removes the cluster
#   hack/e2e.sh --keep    leaves the cluster, and prints how to use it
#   hack/e2e.sh --reuse   takes the image of an earlier run
#   hack/e2e.sh --down    removes a cluster that was left
#
# REKNIT_E2E_LIMITS=4 allows four times the time for each object and until the Deployments are Available, for a machine
# that does other work.
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/.."
work=${REKNIT_E2E:-${XDG_CACHE_HOME:-$HOME/.cache}/reknit/e2e}
mkdir -p "$work"

say() { printf '%s  %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
die() {
  say "$*"
  exit 1
}

if docker info >/dev/null 2>&1; then
  command -v kind >/dev/null || die "kind is not installed: go install sigs.k8s.io/kind@latest"
  # shellcheck source=hack/e2e/kind.sh
  source "$here/e2e/kind.sh"
else
  # shellcheck source=hack/e2e/namespaces.sh
  source "$here/e2e/namespaces.sh"
fi
# shellcheck source=hack/e2e/checks.sh
source "$here/e2e/checks.sh"

keep=false reuse=false
for argument in "$@"; do
  case $argument in
    --keep) keep=true ;;
    --reuse) reuse=true ;;
    --down)
      cluster_down
      exit
      ;;
    *) die "usage: hack/e2e.sh [--keep] [--reuse] | --down" ;;
  esac
done

# Shows the state of the cluster if a check failed, and removes the cluster.
clean_up() {
  local status=$?
  trap '' INT TERM
  if [ "$status" != 0 ] && [ -e "$KUBECONFIG" ]; then
    k --namespace knative-samples get pods -o wide >&2 || true
    k --namespace knative-samples get events --sort-by .metadata.creationTimestamp 2>/dev/null | tail -n 20 >&2 || true
  fi
  if $keep && [ -e "$KUBECONFIG" ]; then
    say "$(how_to_use)"
    say "hack/e2e.sh --down removes it"
  else
    cluster_down || say "the cluster was not removed completely"
  fi
  exit "$status"
}

began=$SECONDS
commit=$(git rev-parse --short HEAD)
[ -z "$(git status --porcelain)" ] || commit+=" with uncommitted changes"
if $reuse; then say "the image of an earlier run"; else build_image; fi
built=$((SECONDS - began))
trap clean_up EXIT
trap 'exit 130' INT TERM
cluster_down >/dev/null 2>&1 || true # a cluster that an interrupted run left
say "starting the cluster"
cluster_up
load_image
run_checks

cat "$work/result.md" >&2
say "passed in $((SECONDS - began)) s, $built s of them for programs and images. The table is $work/result.md"
