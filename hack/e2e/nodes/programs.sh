#!/usr/bin/env bash
# Puts the programs of a cluster into $bin: kubelet, kube-proxy and crane, which serves as the registry, are built from the
# Go modules in programs/go.mod; the others are linked from hack/setup-envtest.sh. About seven minutes on two processors the
# first time. The build caches, 4 GB, are removed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/e2e/nodes/env.sh
source "$here/env.sh"
# shellcheck source=hack/find-go.sh
source "$here/../../find-go.sh"
version=v1.36.3 # the version in programs/go.mod, which the programs report
mkdir -p "$bin"

# build PACKAGE: into $bin, unless it is there.
build() {
  local package=$1 program=$bin/${1##*/} began=$SECONDS component=k8s.io/component-base/version
  [ ! -x "$program" ] || return 0
  (cd "$here/programs" && GOWORK=off GOTOOLCHAIN=auto CGO_ENABLED=0 GOFLAGS=-modcacherw GOMODCACHE=$work/go/modules \
    GOCACHE=$work/go/objects go build -trimpath -o "$program" \
    -ldflags "-s -w -X $component.gitVersion=$version -X $component.gitMajor=1 -X $component.gitMinor=36" "$package")
  say "built ${package##*/} in $((SECONDS - began)) s"
}

assets=$("$here/../../setup-envtest.sh" | tail -n 1)
for program in kube-apiserver etcd kubectl kube-controller-manager kube-scheduler; do
  ln -sf "$assets/$program" "$bin/$program"
done
find_go "$work" || die "neither Go nor python3 with pip is installed: install Go from https://go.dev/dl"
build k8s.io/kubernetes/cmd/kubelet
build k8s.io/kubernetes/cmd/kube-proxy
build github.com/google/go-containerregistry/cmd/crane
rm -rf "$work/go"
