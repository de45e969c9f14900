#!/usr/bin/env bash
# A control plane and a registry in the namespaces of node 0, which `node.sh create 0` makes. The kube-proxy of that node
# lets the API server reach Services. They end with these namespaces.
#
#   control-plane.sh up                             starts them; the kubeconfig is $cluster/admin.kubeconfig
#   control-plane.sh kubeconfig FILE USER [GROUP]   writes $cluster/FILE.kubeconfig for the user
set -euo pipefail
# shellcheck source=hack/e2e/nodes/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pki=$cluster/pki
server=https://$server_ip:6443
mkdir -p "$pki" "$cluster/log"

k() { in_node 0 "$bin/kubectl" --kubeconfig "$cluster/admin.kubeconfig" "$@"; }

ca() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=kubernetes \
    -keyout "$pki/ca.key" -out "$pki/ca.crt" 2>/dev/null
}

# certificate NAME SUBJECT [ALTERNATIVE NAMES]: writes $pki/NAME.crt and its key.
certificate() {
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" -keyout "$pki/$1.key" \
    -out "$pki/$1.csr" 2>/dev/null
  openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 30 \
    -out "$pki/$1.crt" 2>/dev/null \
    -extfile <(printf 'keyUsage=digitalSignature\nextendedKeyUsage=clientAuth,serverAuth\n%s' "${3:+subjectAltName=$3}")
}

kubeconfig() {
  local file=$1 user=$2 group=${3:-}
  certificate "$file" "${group:+/O=$group}/CN=$user"
  cat >"$cluster/$file.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "$server", certificate-authority: $pki/ca.crt}}]
users: [{name: e2e, user: {client-certificate: $pki/$file.crt, client-key: $pki/$file.key}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
current-context: e2e
END
}

# daemon NAME COMMAND...: starts the command in the namespaces of node 0.
daemon() {
  local log=$cluster/log/$1.log
  shift
  in_node 0 setsid "$@" </dev/null >"$log" 2>&1 &
}

keys() {
  ca
  certificate apiserver /CN=kube-apiserver \
    "IP:$server_ip,IP:${service_cidr%.0/*}.1,IP:127.0.0.1,DNS:kubernetes.default.svc"
  certificate apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client
  openssl genrsa -out "$pki/sa.key" 2048 2>/dev/null
  openssl rsa -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2>/dev/null
  kubeconfig admin admin system:masters
  kubeconfig kcm system:kube-controller-manager
  kubeconfig scheduler system:kube-scheduler
  kubeconfig kube-proxy system:kube-proxy
}

# NodeRestriction and OwnerReferencesPermissionEnforcement are enabled as in the strictest clusters.
api_server() {
  # On sockets in a folder, not on a port: etcd asks nobody for a password. It insists on a host and a port.
  mkdir -p "$cluster/etcd"
  chmod 700 "$cluster/etcd"
  # shellcheck disable=SC2016 # the arguments of sh
  daemon etcd sh -c 'cd "$1" && shift && exec "$@"' sh "$cluster/etcd" "$bin/etcd" --data-dir data --unsafe-no-fsync \
    --listen-client-urls unix://clients:1 --advertise-client-urls unix://clients:1 --listen-peer-urls unix://peers:1 \
    --initial-advertise-peer-urls unix://peers:1 --initial-cluster default=unix://peers:1
  daemon kube-apiserver "$bin/kube-apiserver" "--etcd-servers=unix://$cluster/etcd/clients:1" --bind-address=$server_ip \
    --secure-port=6443 --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --client-ca-file="$pki/ca.crt" --kubelet-client-certificate="$pki/apiserver-kubelet.crt" \
    --kubelet-client-key="$pki/apiserver-kubelet.key" --kubelet-preferred-address-types=InternalIP \
    --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement \
    --service-account-issuer=https://kubernetes.default.svc --service-account-signing-key-file="$pki/sa.key" \
    --service-account-key-file="$pki/sa.pub" --service-cluster-ip-range=$service_cidr --allow-privileged \
    --audit-policy-file="$here/audit-policy.yaml" --audit-log-path="$audit_log"
  local attempt
  for ((attempt = 0; ; attempt++)); do
    ! k get --raw /readyz >/dev/null 2>&1 || break
    [ "$attempt" -lt 200 ] || die "the API server is not ready: $cluster/log/kube-apiserver.log"
    sleep 0.3
  done
  local listening
  listening=$(in_node 0 ss -Hltnp)
  ! grep -E 'etcd|:(2379|2380) ' <<<"$listening" >&2 || die "etcd listens on a port, where it asks nobody for a password"
}

up() {
  keys
  mkdir -p "$cluster/registry"
  daemon registry "$bin/crane" registry serve --address "$registry" --disk "$cluster/registry"
  api_server
  daemon kcm "$bin/kube-controller-manager" --kubeconfig "$cluster/kcm.kubeconfig" --leader-elect=false \
    --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" --use-service-account-credentials \
    --bind-address=127.0.0.1
  daemon scheduler "$bin/kube-scheduler" --kubeconfig "$cluster/scheduler.kubeconfig" --leader-elect=false \
    --bind-address=127.0.0.1
  k create clusterrolebinding kube-proxy --clusterrole=system:node-proxier --user=system:kube-proxy >/dev/null
}

case ${1:-} in
  up) up ;;
  kubeconfig)
    shift
    kubeconfig "$@"
    ;;
  *) die "usage: control-plane.sh up|kubeconfig FILE USER [GROUP]" ;;
esac
