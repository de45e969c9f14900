#!/usr/bin/env bash
# Runs a local API server with config/ applied, and the sample controller and its webhook, each as its own service
# account. Prints a table of the example objects whenever it changes, until Ctrl-C. With --once it exits when the
# webhook has refused an invalid object and the example is Ready. Everything listens on free ports of 127.0.0.1 and is
# removed afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage="usage: hack/run-local.sh [--once]    # until Ctrl-C, or --once: until the example is Ready"
once=false
for argument in "$@"; do
  case "$argument" in
    --once) once=true ;;
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

dir=$(mktemp -d "${TMPDIR:-/tmp}/reknit-local.XXXXXX")
control_plane=
controller=
webhook=

say() {
  printf '%s  %s\n' "$(date +%H:%M:%S)" "$*"
}

# stop PID: sends SIGTERM and waits for the process to exit.
stop() {
  [ -n "$1" ] || return 0
  kill -TERM "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

# The controller is stopped first, because it needs the API server to release its leases.
clean_up() {
  trap '' INT TERM
  stop "$controller"
  stop "$webhook"
  stop "$control_plane"
  rm -rf "$dir"
}
trap clean_up EXIT
trap 'echo; say "stopping"; exit 0' INT TERM

running() {
  kill -0 "$1" 2>/dev/null
}

# give_up MESSAGE LOG: prints the message and the last lines of the log, and exits with status 1.
give_up() {
  say "$1; the end of its log:" >&2
  tail -n 20 "$2" >&2
  exit 1
}

say "looking for kube-apiserver and etcd; if they cannot be downloaded, they are built once, which takes minutes"
KUBEBUILDER_ASSETS=$(hack/setup-envtest.sh --control-plane | tail -n 1)
export KUBEBUILDER_ASSETS
export PATH="$KUBEBUILDER_ASSETS:$PATH"

say "building the controller and the webhook"
# Building an example too selects the features of dev-dependencies, so that cargo reuses what cargo test has built.
cargo build --bin controller --bin webhook --example control-plane
# From here on everything is on 127.0.0.1, which no proxy reaches.
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

# `set -m` puts background processes into process groups of their own, so that Ctrl-C does not reach them and clean_up
# stops them in order. If this script is killed, the input of the control plane ends, and it exits.
mkfifo "$dir/alive"
set -m
"$target/debug/examples/control-plane" <"$dir/alive" >"$dir/kubeconfig" 2>"$dir/control-plane.log" &
control_plane=$!
set +m
exec 9>"$dir/alive"

say "starting the API server"
until [ -s "$dir/kubeconfig" ]; do
  running "$control_plane" || give_up "the API server did not start" "$dir/control-plane.log"
  sleep 0.2
done
read -r KUBECONFIG <"$dir/kubeconfig"
export KUBECONFIG

say "applying config/"
kubectl apply -k config/ >"$dir/apply.log" || give_up "kubectl failed" "$dir/apply.log"
kubectl wait --for=condition=Established --timeout=30s --filename config/300-addressableservice.yaml \
  --filename config/300-simpledeployment.yaml >/dev/null

# start NAME: starts the program NAME as the service account NAME, and sets $started to its process id.
start() {
  local kubeconfig="$dir/$1.kubeconfig" token
  token=$(kubectl --namespace knative-samples create token "$1" --duration=24h)
  kubectl config view --raw --flatten >"$kubeconfig"
  kubectl --kubeconfig "$kubeconfig" config set-credentials "$1" --token="$token" >/dev/null
  kubectl --kubeconfig "$kubeconfig" config set-context --current --user="$1" >/dev/null
  set -m
  # The address of the webhook is read from its log, so this level is enabled whatever RUST_LOG selects.
  RUST_LOG="${RUST_LOG:+$RUST_LOG,reknit_sharedmain=info}" SYSTEM_NAMESPACE=knative-samples \
    KNATIVE_HEALTH_PROBES_PORT=0 METRICS_PROMETHEUS_PORT=0 PROFILING_PORT=0 WEBHOOK_PORT=0 \
    "$target/debug/$1" --kubeconfig "$kubeconfig" --bind-address 127.0.0.1 \
    >"$dir/$1.log" 2>&1 9>&- &
  started=$!
  set +m
}

# use_url KIND NAME PATH: makes the API server call the webhook at its address on this machine, because there is no
# network for Services.
use_url() {
  kubectl patch "$1" "$2.webhook.samples.knative.dev" --type=json --patch \
    "[{\"op\": \"replace\", \"path\": \"/webhooks/0/clientConfig\", \"value\": {\"url\": \"https://$address$3\"}}]" >/dev/null
}

say "starting the webhook"
start webhook
webhook=$started
until address=$(sed -n 's/.*listening for the webhook.*"address":"\([^"]*\)".*/\1/p' "$dir/webhook.log") && [ -n "$address" ]; do
  running "$webhook" || give_up "the webhook did not start" "$dir/webhook.log"
  sleep 0.2
done
use_url mutatingwebhookconfiguration defaulting /defaulting
use_url validatingwebhookconfiguration validation /resource-validation
use_url validatingwebhookconfiguration config /config-validation

say "starting the controller"
start controller
controller=$started

# Until the webhook has written its rules and its CA into the configurations, the invalid object is accepted, or refused
# with another message.
say "waiting until an AddressableService without a serviceName is refused"
for ((attempt = 0; ; attempt++)); do
  running "$webhook" || give_up "the webhook exited" "$dir/webhook.log"
  refusal=$(kubectl create --dry-run=server --validate=false -f - 2>&1 <<<'{"apiVersion": "samples.knative.dev/v1alpha1",
    "kind": "AddressableService", "metadata": {"name": "nameless", "namespace": "default"}, "spec": {"serviceName": ""}}' || true)
  case "$refusal" in *"spec.serviceName: Required value"*) break ;; esac
  [ "$attempt" -lt 120 ] || give_up "the webhook was not called within a minute ($refusal)" "$dir/webhook.log"
  sleep 0.5
done
echo "$refusal"

say "creating an AddressableService and the Service that it names, and a SimpleDeployment. Its pods never become"
say "ready, because there are no nodes"
kubectl apply -f config/example/ >/dev/null
if ! $once; then
  say "in another terminal: export KUBECONFIG=$KUBECONFIG"
  say "the logs: $dir/controller.log, $dir/webhook.log"
  say "press Ctrl-C to stop"
fi

last_table=
for ((seconds = 0; ; seconds++)); do
  running "$control_plane" || give_up "the API server exited" "$dir/control-plane.log"
  running "$controller" || give_up "the controller exited" "$dir/controller.log"
  running "$webhook" || give_up "the webhook exited" "$dir/webhook.log"
  # Errors of kubectl are printed too, because the user may have deleted a CRD.
  table=$(kubectl get asvc --all-namespaces 2>&1 && echo && kubectl get simpledeployments --all-namespaces 2>&1) || true
  if [ "$table" != "$last_table" ]; then
    say "kubectl get asvc --all-namespaces; kubectl get simpledeployments --all-namespaces"
    echo "$table"
    last_table=$table
  fi
  if $once; then
    ready=$(kubectl get asvc hello -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}' || true)
    [ "$ready" != True ] || exit 0
    [ "$seconds" -lt 60 ] || give_up "the example was not Ready within a minute" "$dir/controller.log"
  fi
  sleep 1
done
