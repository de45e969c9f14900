# shellcheck shell=bash disable=SC2034,SC2154 # $here is set by e2e.sh
# A cluster of kind, for hack/e2e.sh. It has the functions of namespaces.sh.

image=reknit/sample-controller:e2e
audit_log= # none
export KUBECONFIG=$work/kind.kubeconfig

k() { kubectl "$@"; }

# Runs a command from where the API server can be reached.
run_client() { "$@"; }
kubectl_path() { command -v kubectl; }
how_to_use() {
  echo "the cluster runs on: KUBECONFIG=$KUBECONFIG; kind load docker-image NAME --name reknit-e2e gets an image in"
}

build_image() { docker build --tag "$image" --build-arg "REVISION=$(git rev-parse HEAD)" .; }

cluster_up() {
  kind create cluster --name reknit-e2e --config "$here/e2e/kind.yaml" --kubeconfig "$KUBECONFIG" --wait 120s
}

load_image() { kind load docker-image "$image" --name reknit-e2e; }

on_node() { docker exec "$@"; }
lose_node() { docker kill "$1" >/dev/null; }
describe_cluster() { echo "kind $(kind version -q 2>/dev/null), $(k get nodes -o 'jsonpath={.items[0].status.nodeInfo.kubeletVersion}')"; }

cluster_down() { kind delete cluster --name reknit-e2e --kubeconfig "$KUBECONFIG"; }
