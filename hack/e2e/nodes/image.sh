#!/usr/bin/env bash
# Builds an image from the Dockerfile of the repository with buildah, and pushes it to the registry of control-plane.sh.
#
#   image.sh build NAME      the steps run in a chroot, and in the network of the machine, through which cargo downloads
#   image.sh push NAME       NAME starts with the address of the registry
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/e2e/nodes/env.sh
source "$here/env.sh"
usage="usage: image.sh build|push NAME"
name=${2:?$usage}
export TMPDIR=$images/tmp # also the caches of the Dockerfile
mkdir -p "$TMPDIR"

case $1 in
  build)
    cd "$here/../../.."
    storage build --isolation chroot --network host --pull-never --layers=false \
      --build-arg "REVISION=$(git rev-parse HEAD)" --tag "$name" .
    ;;
  push)
    in_network_of 0 buildah --root "$images/storage" --runroot "$images/run" --storage-driver overlay \
      push --quiet --tls-verify=false "$name" "docker://$name" >/dev/null
    ;;
  *) die "$usage" ;;
esac
