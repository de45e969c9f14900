# shellcheck shell=bash disable=SC2154 # $name, $node, $ip, $pods and $cgroup are set by node.sh
# The configuration of a node's programs.

configure() {
  configure_containerd
  configure_pod_network
  configure_kubelet
  configure_kube_proxy
  "$here/control-plane.sh" kubeconfig "$name" "system:node:$name" system:nodes
}

# restrict_oom_score_adj: without CAP_SYS_RESOURCE a process cannot lower its score. The registry serves plain HTTP.
configure_containerd() {
  local hosts=$node/fs/etc-containerd/certs.d/$registry
  cat >"$node/fs/etc-containerd/config.toml" <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
END
  mkdir -p "$hosts"
  cat >"$hosts/hosts.toml" <<END
server = "http://$registry"
[host."http://$registry"]
  capabilities = ["pull", "resolve"]
END
}

configure_pod_network() {
  mkdir -p "$node/fs/etc-cni/net.d"
  cat >"$node/fs/etc-cni/net.d/10-bridge.conflist" <<END
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
}

# failCgroupV1: kubelet 1.36 starts on cgroup v1 only if this is false. As in kind, a full disk of the machine evicts no pods
# and removes no images: the pause image could not be pulled again.
configure_kubelet() {
  cat >"$node/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $ip
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $cluster/pki/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
evictionHard: {nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
failCgroupV1: false
failSwapOn: false
imageGCHighThresholdPercent: 100
END
}

# The limits of conntrack belong to the machine.
configure_kube_proxy() {
  cat >"$node/kube-proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $cluster/kube-proxy.kubeconfig}
clusterCIDR: $pod_cidr
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
healthzBindAddress: 127.0.0.1:10256
hostnameOverride: $name
metricsBindAddress: 127.0.0.1:10249
mode: iptables
END
}
