#!/usr/bin/env bash
# Disturbs replicas of the sample controller at random while objects change: kills, restarts and pauses them, breaks and
# silences their connections to the API server, and varies their number. Checks that each key has one leader at a time,
# and that every object is right at the end. Also runs the other availability tests. hack/test.sh runs the same tests with
# 20 seconds of disturbances. They check times of a second or two: run them on a machine that does nothing else.
#
#   hack/chaos.sh [--seconds N] [--seed N]    by default: 120 seconds, a random seed
#   hack/chaos.sh --overload                  instead counts the leaderships that are lost while a proxy refuses 50, 70 and
#                                             90 % of the requests for Leases, for six minutes
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: hack/chaos.sh [--seconds N] [--seed N] | --overload    # by default: 120 seconds, a random seed" >&2
  exit 2
}

export CHAOS_SECONDS=120
overload=false
while [ $# -gt 0 ]; do
  case "$1" in
    --overload)
      overload=true
      shift
      continue
      ;;
    --seconds) export CHAOS_SECONDS=${2:?} ;;
    --seed) export CHAOS_SEED=${2:?} ;;
    *) usage ;;
  esac
  shift 2
done

KUBEBUILDER_ASSETS=$(hack/setup-envtest.sh --control-plane | tail -n 1)
export KUBEBUILDER_ASSETS
if $overload; then
  exec cargo test --locked --package reknit-leadership --test integration overload:: -- --ignored --show-output
fi
exec cargo test --locked --package reknit --test integration availability:: -- --ignored \
  --skip releases:: --test-threads=2 --show-output # hack/rollover.sh runs that one
