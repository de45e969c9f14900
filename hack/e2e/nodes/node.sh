#!/usr/bin/env bash
# A node of containerd, kubelet and kube-proxy in network, mount, process, IPC and host name namespaces of its own. When the
# first process of these namespaces ends, everything in them ends, pods included, and mounts, addresses and firewall rules
# are gone.
#
#   node.sh create N   makes the namespaces of node N, with the address 10.250.0.1N. Node 0 has the bridge of all nodes
#   node.sh start N    starts containerd, kubelet and kube-proxy, and waits until the node is Ready
#   node.sh kill N     ends the node at once, as a power failure does
#   node.sh remove N   ends the node, and removes its folder and its cgroups
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/e2e/nodes/env.sh
source "$here/env.sh"
# shellcheck source=hack/e2e/nodes/cgroups.sh
source "$here/cgroups.sh"
# shellcheck source=hack/e2e/nodes/node-config.sh
source "$here/node-config.sh"
usage="usage: node.sh create|start|kill|remove N"
command=${1:?$usage} n=${2:?$usage}
name=node-$n node=$nodes/$n ip=10.250.0.1$n pods=10.244.$n.0/24 cgroup=reknit-e2e-node$n

# Starts the first process of the namespaces. It has to be a shell, which waits for processes whose parents have ended.
start_holder() {
  local outer holder=
  setsid unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc --propagation private \
    bash -c 'while :; do sleep 1000000 & wait; done' </dev/null >/dev/null 2>&1 &
  outer=$!
  until [ -n "$holder" ]; do
    sleep 0.1
    holder=$(pgrep -P "$outer" || true)
  done
  echo "$outer" >"$node/outer.pid"
  echo "$holder" >"$node/holder.pid"
  # unshare forks before it mounts /proc.
  until in_node "$n" test -d /proc/self 2>/dev/null; do sleep 0.1; done
}

# Mounts folders of the node over those of the machine, in the mount namespace of the node.
# shellcheck disable=SC2016 # expanded by the shell in the node
mount_folders() {
  in_node "$n" bash -euc '
    hostname "$1"
    # /sys of this network namespace, with the cgroups of the machine.
    mkdir -p "$2/cgroups" && mount --rbind /sys/fs/cgroup "$2/cgroups"
    mount -t sysfs sysfs /sys && mount --rbind "$2/cgroups" /sys/fs/cgroup && umount -l "$2/cgroups"
    mount -t tmpfs -o mode=755 tmpfs /run
    for pair in kubelet:/var/lib/kubelet containerd:/var/lib/containerd cni:/var/lib/cni log-pods:/var/log/pods \
      log-containers:/var/log/containers etc-cni:/etc/cni etc-containerd:/etc/containerd; do
      mount --bind "$2/fs/${pair%%:*}" "${pair#*:}"
    done
    # Last, because an unmount above would reach the copies of shared mounts.
    mount --make-rshared /' - "$name" "$node"
}

# Connects the node to the bridge in node 0. The default route leads nowhere, but without one a connection to a Service
# fails before the rules of kube-proxy see it.
# shellcheck disable=SC2016 # expanded by the shell in the node
connect() {
  in_node "$n" bash -euc 'ip link set lo up; sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1'
  if [ "$n" = 0 ]; then
    in_node 0 bash -euc 'ip link add nodes type bridge; ip address add "$1/24" dev nodes; ip link set nodes up
      ip route add default dev nodes' - "$ip"
  else
    in_network_of "$n" ip link add eth0 type veth peer name "node$n" netns "$(cat "$nodes/0/holder.pid")"
    in_network_of "$n" bash -euc 'ip address add "$1/24" dev eth0; ip link set eth0 up; ip route add default dev eth0' \
      - "$ip"
    in_network_of 0 ip link set "node$n" master nodes up
  fi
}

# Routes the pods of each node through that node.
route_pods() {
  local folder other
  for folder in "$nodes"/*/; do
    other=$(basename "$folder")
    [ "$other" != "$n" ] || continue
    in_network_of "$n" ip route add "10.244.$other.0/24" via "10.250.0.1$other"
    in_network_of "$other" ip route replace "$pods" via "$ip"
  done
}

create() {
  [ ! -e "$node" ] || die "node $n exists: run node.sh remove $n"
  mkdir -p "$node"/fs/{kubelet,containerd,cni,log-pods,log-containers,etc-cni,etc-containerd} "$node/log"
  # Mount points, which stay empty outside of the namespaces.
  mkdir -p /var/lib/{kubelet,containerd,cni} /var/log/{pods,containers} /etc/{cni,containerd}
  start_holder
  mount_folders
  connect
  route_pods
}

# daemon NAME COMMAND...: starts the command in the namespaces of the node.
daemon() {
  local log=$node/log/$1.log
  shift
  in_node "$n" setsid "$@" </dev/null >"$log" 2>&1 &
}

# wait_for WHAT LOG COMMAND...: waits up to 90 seconds until the command succeeds.
wait_for() {
  local what=$1 log=$2 attempt
  shift 2
  for ((attempt = 0; ; attempt++)); do
    ! "$@" >/dev/null 2>&1 || return 0
    [ "$attempt" -lt 180 ] || die "$what does not start: $log"
    sleep 0.5
  done
}

is_ready() {
  in_network_of 0 "$bin/kubectl" --kubeconfig "$cluster/admin.kubeconfig" wait "node/$name" --for=condition=Ready \
    --timeout=5s
}

start() {
  make_cgroups
  configure
  daemon containerd containerd
  wait_for containerd "$node/log/containerd.log" in_node "$n" ctr version
  in_node "$n" ctr --namespace k8s.io images import "$images/pause.tar" >/dev/null
  daemon kubelet "$bin/kubelet" --config "$node/kubelet.yaml" --kubeconfig "$cluster/$name.kubeconfig" --node-ip "$ip" \
    --hostname-override "$name"
  daemon kube-proxy "$bin/kube-proxy" --config "$node/kube-proxy.yaml"
  wait_for "$name" "$node/log/kubelet.log" is_ready
  say "$name is Ready"
}

# Kills the first process of the namespaces, if it is still the one that was started.
kill_node() {
  local holder outer
  [ -e "$node/holder.pid" ] || return 0
  holder=$(cat "$node/holder.pid") outer=$(cat "$node/outer.pid")
  [ "$(cat "/proc/$outer/comm" 2>/dev/null)" != unshare ] || kill -KILL "$holder" 2>/dev/null || true
  while [ -e "/proc/$holder" ]; do sleep 0.1; done
}

# The mount points are removed with the last node, because removing one takes away what other nodes mount on it.
remove() {
  kill_node
  remove_cgroups
  rm -rf "$node"
  [ -n "$(ls "$nodes")" ] ||
    rmdir /var/lib/{kubelet,cni} /var/log/{pods,containers} /etc/cni/net.d /etc/cni 2>/dev/null || true
}

case $command in
  create) create ;;
  start) start ;;
  kill) kill_node ;;
  remove) remove ;;
  *) die "$usage" ;;
esac
