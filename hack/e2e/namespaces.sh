# shellcheck shell=bash disable=SC2154 # $here is set by e2e.sh
# A cluster of containerd and kubelet in namespaces, for hack/e2e.sh on a machine without Docker: node 0 with the control
# plane, and two workers. It has the functions of kind.sh.

# shellcheck source=hack/e2e/nodes/env.sh
source "$here/e2e/nodes/env.sh"
image=$registry/sample-controller:e2e
export KUBECONFIG=$cluster/admin.kubeconfig

k() { in_network_of 0 "$bin/kubectl" "$@"; }

# Runs a command from where the API server can be reached.
run_client() { in_network_of 0 "$@"; }
kubectl_path() { echo "$bin/kubectl"; }
how_to_use() {
  cat <<EOF
the cluster runs in a network of its own, where kubectl and other clients reach it:
  nsenter --target $(cat "$nodes/0/holder.pid") --net -- env KUBECONFIG=$KUBECONFIG $bin/kubectl get pods --all-namespaces
An image gets in by its registry, $registry: tag one of your own $registry/NAME:TAG in buildah's storage, as
hack/e2e/nodes/image.sh does, and run: hack/e2e/nodes/image.sh push $registry/NAME:TAG
EOF
}

check_programs() {
  local program missing=()
  [ "$(id -u)" = 0 ] || die "without Docker this needs root, for namespaces and containerd"
  for program in containerd runc buildah mmdebstrap iptables conntrack openssl; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  [ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
  [ ${#missing[@]} -eq 0 ] || die "not installed: ${missing[*]}; on Debian: apt-get install --no-install-recommends" \
    "${missing[*]}"
}

build_image() {
  check_programs
  "$here/e2e/nodes/programs.sh"
  "$here/e2e/nodes/base-images.sh"
  "$here/e2e/nodes/image.sh" build "$image"
}

# Node 0 runs no pods of ours, as in kind, so that losing a node does not lose the control plane.
cluster_up() {
  local n
  "$here/e2e/nodes/node.sh" create 0
  "$here/e2e/nodes/control-plane.sh" up
  "$here/e2e/nodes/node.sh" start 0
  k taint node node-0 node-role.kubernetes.io/control-plane:NoSchedule >/dev/null
  for n in 1 2; do
    "$here/e2e/nodes/node.sh" create $n
    "$here/e2e/nodes/node.sh" start $n
  done
}

load_image() { "$here/e2e/nodes/image.sh" push "$image"; }

on_node() {
  local n=${1#node-}
  shift
  in_node "$n" "$@"
}
lose_node() { "$here/e2e/nodes/node.sh" kill "${1#node-}"; }
describe_cluster() { echo "containerd $(containerd --version | cut -d' ' -f3), $("$bin/kubelet" --version) in namespaces"; }

cluster_down() {
  local folder
  for folder in "$nodes"/*/; do
    [ ! -d "$folder" ] || "$here/e2e/nodes/node.sh" remove "$(basename "$folder")"
  done
  rm -rf "$cluster"
}
