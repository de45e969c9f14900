#!/usr/bin/env bash
# Runs a real Prometheus that scrapes the sample, and checks that the expressions of kubebuilder's Grafana dashboards, and those
# of config/monitoring, find data. Prometheus and the dashboards come from their Go modules, and are kept in
# ${XDG_CACHE_HOME:-~/.cache}/reknit/prometheus: building Prometheus takes a few minutes the first time.
#
#   hack/prometheus.sh
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# shellcheck source=hack/find-go.sh
source "$(dirname "${BASH_SOURCE[0]}")/find-go.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The modules of Prometheus 3.x have the versions v0.3xx.
prometheus=v0.316.0
kubebuilder=v4.16.0
cache=${XDG_CACHE_HOME:-${HOME:?is not set, and neither is XDG_CACHE_HOME}/.cache}/reknit/prometheus
export PROMETHEUS=$cache/prometheus-$prometheus KUBEBUILDER_DASHBOARDS=$cache/kubebuilder-$kubebuilder

say() { printf 'prometheus: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# The templates of the dashboards that kubebuilder's plugin grafana writes.
download_dashboards() {
  local work plugin=pkg/plugins/optional/grafana/v1alpha/scaffolds/internal/templates
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.new.XXXXXX")
  find_go "$work" || die "neither Go nor python3 with pip is installed: install Go from https://go.dev/dl"
  say "downloading the dashboards of kubebuilder $kubebuilder"
  in_go_caches "$work" go mod download "sigs.k8s.io/kubebuilder/v4@$kubebuilder" >"$work/log" 2>&1 ||
    die "downloading kubebuilder failed; check that a Go module proxy is reachable: $(tail -n 1 "$work/log")"
  mkdir "$work/dashboards"
  cp "$work/modules/sigs.k8s.io/kubebuilder/v4@$kubebuilder/$plugin"/{runtime,resources}.go "$work/dashboards"
  mv "$work/dashboards" "$KUBEBUILDER_DASHBOARDS"
  rm -rf "$work"
}

# Service discovery, which pulls in the SDKs of all clouds, is left out.
[ -x "$PROMETHEUS" ] ||
  build_program "$PROMETHEUS" "github.com/prometheus/prometheus/cmd/prometheus@$prometheus" -tags remove_all_sd
[ -d "$KUBEBUILDER_DASHBOARDS" ] || download_dashboards
: "${KUBEBUILDER_ASSETS:=$(hack/setup-envtest.sh --control-plane | tail -n 1)}"
export KUBEBUILDER_ASSETS
cargo test --locked --package reknit-samples --test integration prometheus:: -- --ignored --nocapture
