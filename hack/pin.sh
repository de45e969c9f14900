#!/usr/bin/env bash
# Pins what a build takes from elsewhere by its digest: the actions of workflows by their commits, the base images of
# Dockerfiles, and the archives of hack/setup-envtest.sh by their checksums. It needs the network, git, curl, and docker
# with buildx. Review the changes, and commit them; dependabot keeps the pins of actions and images up to date.
#
#   hack/pin.sh            pins what is not pinned yet
#   hack/pin.sh --check    lists what is not pinned, without the network, and exits with status 1 if there is something
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "$*" in
  "" | --check) ;;
  *)
    echo "usage: hack/pin.sh [--check]" >&2
    exit 2
    ;;
esac

workflows=(.github/workflows/*.yaml cargo-reknit/template/project/.github/workflows/*.yaml)
dockerfiles=(Dockerfile cargo-reknit/template/project/Dockerfile)
archives=hack/envtest/archives.sha512
releases=${ENVTEST_RELEASES_URL:-https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD}

die() { printf 'hack/pin.sh: %s\n' "$*" >&2; exit 1; }

# Prints ACTION@REF of each action that is not named by a commit.
list_actions() {
  sed -nE 's|.*uses: ([^./@ ][^@ ]*@[^ ]+).*|\1|p' "${workflows[@]}" | { grep -vE '@[0-9a-f]{40}$' || true; } | sort -u
}

# Prints each base image that is not named by its digest.
list_images() {
  sed -nE 's|^FROM ([^ ]+).*|\1|p' "${dockerfiles[@]}" | { grep -v '@sha256:' || true; } | sort -u
}

# Prints the versions of Kubernetes that hack/setup-envtest.sh installs.
list_versions() { sed -nE 's/^(require)?[[:space:]]*k8s.io\/kubernetes (v[0-9.]+).*/\2/p' hack/envtest/go.mod hack/envtest/*/go.mod | sort -u; }

# Prints each version without a pinned archive.
list_unpinned_versions() {
  local version
  for version in $(list_versions); do
    grep -qs "/envtest-$version-" "$archives" || printf '%s\n' "$version"
  done
}

# Replaces a text of a file at the end of a word.
replace() {
  local from=$1 to=$2
  shift 2
  FROM=$from TO=$to perl -pi -e 's/\Q$ENV{FROM}\E(?=\s|$)/$ENV{TO}/' "$@"
}

pin_action() {
  local action=${1%@*} ref=${1#*@} found commit
  found=$(git ls-remote "https://github.com/$(printf '%s' "$action" | cut -d/ -f1,2)" \
    "refs/tags/$ref" "refs/tags/$ref^{}" "refs/heads/$ref") || die "cannot list the tags of $action"
  # The last line of an annotated tag, with ^{}, is its commit.
  commit=$(printf '%s\n' "$found" | sort -k2 | tail -n 1 | cut -f1)
  [[ $commit =~ ^[0-9a-f]{40}$ ]] || die "$action has no tag or branch $ref"
  replace "$1" "$action@$commit # $ref" "${workflows[@]}"
}

pin_image() {
  local digest
  digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$1") || die "cannot read the digest of $1"
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || die "$1 has the digest ${digest:-none}"
  replace "$1" "$1@$digest" "${dockerfiles[@]}"
}

# Adds the archives of a version for all platforms: checksum and address.
pin_archives() {
  curl -fsSL "$releases/envtest-releases.yaml" | awk -v release="$1" '
    /^  v/ { ours = $1 == release ":" }
    ours && $1 == "hash:" { hash = $2 }
    ours && $1 == "selfLink:" { print hash "  " $2 }' >>"$archives"
  grep -q "/envtest-$1-" "$archives" || printf 'no archive of %s: it is built from its Go module\n' "$1" >&2
}

if [ "$*" = --check ]; then
  unpinned=$({ list_actions; list_images; list_unpinned_versions | sed 's/^/the archive of Kubernetes /'; })
  [ -z "$unpinned" ] || { printf "%s\n" "$unpinned" | sed "s/^/not pinned: /"; exit 1; }
  exit
fi
for action in $(list_actions); do pin_action "$action"; done
for image in $(list_images); do pin_image "$image"; done
for version in $(list_unpinned_versions); do pin_archives "$version"; done
