# shellcheck shell=bash disable=SC2034
# Settings and functions of the scripts in this folder, which source this file. All addresses are in network namespaces of
# their own, so that nothing listens in the network of the machine.
work=${REKNIT_E2E:-${XDG_CACHE_HOME:-$HOME/.cache}/reknit/e2e} # everything that is written, except for cgroups
bin=$work/bin                                                  # kubelet, kube-proxy, crane, and links to the control plane
images=$work/images                                            # buildah's storage, and archives of images
cluster=$work/cluster                                          # keys, kubeconfigs and logs of the control plane
audit_log=$cluster/log/audit.log                                # the writes of the sample
nodes=$work/nodes                                              # one folder for each node

server_ip=10.250.0.10 # node 0, with the control plane and the registry. Node N has 10.250.0.1N
service_cidr=10.96.0.0/16
pod_cidr=10.244.0.0/16 # node N has 10.244.N.0/24
registry=$server_ip:5000

say() { printf '%s  %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# storage COMMAND...: runs buildah on the storage below $images.
storage() { buildah --root "$images/storage" --runroot "$images/run" --storage-driver overlay "$@"; }

# in_node N COMMAND...: runs the command in all namespaces of node N.
in_node() {
  local holder
  holder=$(cat "$nodes/$1/holder.pid")
  shift
  nsenter --target "$holder" --net --mount --uts --ipc --pid -- "$@"
}

# in_network_of N COMMAND...: runs the command in the network of node N, with the file system of the machine.
in_network_of() {
  local holder
  holder=$(cat "$nodes/$1/holder.pid")
  shift
  nsenter --target "$holder" --net -- "$@"
}
