#!/usr/bin/env bash
# Puts the programs of a Kubernetes control plane into one folder, and prints that folder as its last line.
#
#   hack/setup-envtest.sh                  kube-apiserver, etcd, kubectl; and for nodes kube-controller-manager,
#                                          kube-scheduler, and kwok with its stages
#   hack/setup-envtest.sh --control-plane  the first three only, which a ControlPlane without nodes needs
#
# Each program comes from the first of these sources that has it. The script prints the source on stderr:
#
#   1. the folder that KUBEBUILDER_ASSETS names
#   2. the cache, ${XDG_CACHE_HOME:-~/.cache}/reknit/envtest, with one complete folder for each version
#   3. PATH, for kubectl
#   4. the official envtest archives, with verified checksums (kube-apiserver, etcd, kubectl); ENVTEST_RELEASES_URL
#      replaces the address of their index, envtest-releases.yaml
#   5. its Go module, in the version of hack/envtest/go.mod: about five minutes for all programs on two cores
#
# The script uses module and build caches of its own for Go (4 GB). An interrupted run keeps them, and a complete run
# removes them, because programs that are built once need no cache in ~/go.
set -euo pipefail

version=v1.36.3 # the replace lines in hack/envtest/go.mod say the same
control_plane=(kube-apiserver etcd kubectl)
nodes=(kube-controller-manager kube-scheduler kwok)
releases=${ENVTEST_RELEASES_URL:-https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD}
modules=$(cd "$(dirname "${BASH_SOURCE[0]}")/envtest" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:?is not set, and neither is XDG_CACHE_HOME}/.cache}/reknit/envtest

# shellcheck source=hack/find-go.sh
source "$(dirname "${BASH_SOURCE[0]}")/find-go.sh"

say() { printf 'setup-envtest: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# Prints the platform as in the names of the archives, for example linux-amd64.
platform() {
  local os arch
  os=$(uname -s | tr '[:upper:]' '[:lower:]')
  arch=$(uname -m)
  case $arch in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
  esac
  printf '%s-%s' "$os" "$arch"
}

wanted() {
  printf '%s\n' "${control_plane[@]}"
  [ "$what" = control-plane ] || printf '%s\n' "${nodes[@]}"
}

# Prints the requested programs that are not in the folder $1.
missing() {
  local program
  for program in $(wanted); do
    [ -x "$1/$program" ] || printf '%s\n' "$program"
  done
}

complete() { [ -z "$(missing "$1")" ]; }

# Links missing programs from the folder $1 into the staging folder. $2 describes that folder.
take_from() {
  local program taken=()
  [ -d "$1" ] || return 0
  for program in $(missing "$staging"); do
    [ -x "$1/$program" ] || continue
    if [ "$program" = kwok ]; then
      [ -d "$1/kwok-stages" ] || continue
      rm -rf "$staging/kwok-stages"
      ln -s "$1/kwok-stages" "$staging/kwok-stages"
    fi
    ln -sf "$1/$program" "$staging/$program"
    taken+=("$program")
  done
  [ ${#taken[@]} -eq 0 ] || say "from $2 $1: ${taken[*]}"
}

# Any kubectl of the user will do.
take_kubectl_from_path() {
  local found
  { missing "$staging" | grep -qx kubectl && found=$(command -v kubectl); } || return 0
  ln -sf "$found" "$staging/kubectl"
  say "from PATH: $found"
}

# Prints "version checksum address" of the archive for this platform: of $version itself, or else of the newest
# release of its minor version.
choose_archive() {
  awk -v wanted="$version" -v suffix="-$platform.tar.gz:" '
    function patch(v) { sub(/.*\./, "", v); return v + 0 }
    BEGIN { minor = wanted; sub(/[0-9]+$/, "", minor) }
    /^  v/ { release = $1; sub(/:$/, "", release); ours = 0 }
    /^    envtest-/ {
      ours = $1 == "envtest-" release suffix && index(release, minor) == 1 && release ~ /\.[0-9]+$/
    }
    ours && $1 == "hash:" { hash = $2 }
    ours && $1 == "selfLink:" && (best == "" || release == wanted || (best != wanted && patch(release) > patch(best))) {
      best = release; line = release " " hash " " $2
    }
    END { if (best == "") exit 1; print line }' "$1"
}

sha512() {
  if command -v sha512sum >/dev/null; then sha512sum "$1"; else shasum -a 512 "$1"; fi | cut -d' ' -f1
}

# The time limits add up to less than five seconds if no server answers.
download_archive() {
  local index=$work/index.yaml archive=$work/archive.tar.gz found checksum address program
  command -v curl >/dev/null || { say "no curl, so no archives"; return 1; }
  say "asking $releases for the official archives"
  curl -fsSL --connect-timeout 2 --max-time 2.5 -o "$index" "$releases/envtest-releases.yaml" >&2 ||
    { say "not reached"; return 1; }
  read -r found checksum address <<<"$(choose_archive "$index" || true)"
  [ -n "${address:-}" ] || { say "no archive of ${version%.*} for $platform there"; return 1; }
  say "downloading $address"
  curl -fsSL --connect-timeout 2 --speed-limit 1000 --speed-time 2 -o "$archive" "$address" >&2 ||
    { say "the download failed or was cut off: not used"; return 1; }
  [ "$(sha512 "$archive")" = "$checksum" ] ||
    { say "its checksum is not the published $checksum: not used"; return 1; }
  mkdir "$work/archive"
  tar -xzf "$archive" -C "$work/archive" >&2 ||
    { say "it cannot be unpacked: not used"; return 1; }
  for program in $(missing "$staging"); do
    address=$(find "$work/archive" -type f -name "$program" | head -n 1)
    [ -n "$address" ] || continue
    chmod +x "$address" && mv -f "$address" "$staging/$program" || return 1
    say "from the official archive of $found: $program"
  done
}

has_control_plane() {
  local program
  for program in "${control_plane[@]}"; do
    [ -x "$staging/$program" ] || return 1
  done
}

package_of() {
  case $1 in
    etcd) printf 'go.etcd.io/etcd/server/v3' ;;
    kwok) printf 'sigs.k8s.io/kwok/cmd/kwok' ;;
    *) printf 'k8s.io/kubernetes/cmd/%s' "$1" ;;
  esac
}

# Runs go in the module of hack/envtest, without the caller's settings for modules. -modcacherw makes the module cache
# removable. It replaces the calling shell, which has to be a subshell, so that the process to stop is Go itself.
in_modules() {
  cd "$modules"
  exec env -u GOOS -u GOARCH GOWORK=off GOTOOLCHAIN=auto CGO_ENABLED=0 GOFLAGS=-modcacherw \
    GOMODCACHE="$cache/build/modules" GOCACHE="$cache/build/objects" "$@"
}

# kube-apiserver reports this version to its clients.
version_flags() {
  local package=k8s.io/component-base/version minor=${version#v1.}
  printf -- '-X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=%s' \
    "$package" "$version" "$package" "$package" "${minor%.*}"
}

build() {
  local program=$1 began=$SECONDS said=$SECONDS
  say "building $program"
  # Without the lock, which would otherwise be held while a part of the build outlives this script.
  in_modules go build -trimpath -ldflags "-s -w $(version_flags)" -o "$work/$program" "$(package_of "$program")" \
    >&2 9>&- &
  building=$!
  while kill -0 "$building" 2>/dev/null; do
    sleep 0.2
    if [ $((SECONDS - said)) -ge 20 ]; then
      said=$SECONDS
      say "still building $program, $((SECONDS - began)) s"
    fi
  done
  wait "$building" || die "building $program from its Go module failed"
  building=
  [ "$program" != kwok ] || copy_stages
  mv -f "$work/$program" "$staging/$program"
  say "from its Go module: $program, in $((SECONDS - began)) s"
}

# Copies the stages, which describe what kwok does to nodes and pods. Without stages kwok does not start.
copy_stages() {
  local stages
  stages=$(in_modules go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
  rm -rf "$staging/kwok-stages"
  mkdir "$staging/kwok-stages"
  cp "$stages/node/fast/node-initialize.yaml" "$stages/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml" \
    "$stages/pod/fast/pod-ready.yaml" "$stages/pod/fast/pod-complete.yaml" "$stages/pod/fast/pod-delete.yaml" \
    "$staging/kwok-stages/"
  chmod u+w "$staging"/kwok-stages/*
}

build_missing() {
  local program
  find_go "$work" ||
    die "no Go and no python3 with pip: install Go from https://go.dev/dl, or point KUBEBUILDER_ASSETS at a folder with" \
      "kube-apiserver and etcd"
  for program in $(missing "$staging"); do
    build "$program"
  done
}

# Files that cannot be removed, for example because a process still writes them, are left for the next run. They do no
# harm.
remove_build() {
  { chmod -R u+w "$cache/build" && rm -rf "$cache/build"; } 2>/dev/null || true
}

# Two runs may install the same version: the second one waits, and finds the result of the first.
lock() {
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  try_lock 6 || { say "waiting for another run to finish"; try_lock 2; } || die "cannot lock $cache/lock"
}

# $1 is the operation of flock: 2 waits, and 6 does not. macOS has no flock(1), but it has perl.
try_lock() {
  if command -v flock >/dev/null; then
    if [ "$1" = 6 ]; then flock -n 9; else flock 9; fi
  else
    perl -e 'open(my $lock, ">&=", 9) or exit 1; flock($lock, $ARGV[0]) or exit 1' "$1"
  fi
}

# Prints the name of the folder to fill: that of the version, or another one if the user's own programs are linked
# into it.
folder_name() {
  local name=$version-$platform
  [ "$what" = all ] || name=$name-control-plane
  [ -z "$assets" ] || name=$name-with-$(printf '%s' "$assets" | cksum | cut -d' ' -f1)
  printf '%s' "$name"
}

# Fills the folder under the lock. Other folders named .new were left by killed runs.
fill() {
  rm -rf "$cache"/.new.*
  work=$(mktemp -d "$cache/.new.XXXXXX")
  building=
  trap 'clean_up' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  staging=$work/folder
  mkdir "$staging"
  # A copy, because the existing folder may be in use, and stays if the other programs cannot be installed.
  [ ! -d "$folder" ] || cp -a "$folder/." "$staging/"
  [ -z "$assets" ] || take_from "$assets" KUBEBUILDER_ASSETS
  take_from "$cache/$version-$platform" "the cache"
  take_from "$cache/$version-$platform-control-plane" "the cache"
  take_kubectl_from_path
  has_control_plane || download_archive || true
  complete "$staging" || build_missing
  rm -rf "$folder"
  mv "$staging" "$folder"
  remove_build
}

clean_up() {
  [ -z "$building" ] || kill "$building" 2>/dev/null || true
  rm -rf "$work"
}

what=all
case ${1:-} in
  '') ;;
  --control-plane) what=control-plane ;;
  *) die "usage: hack/setup-envtest.sh [--control-plane]" ;;
esac
platform=$(platform)
assets=${KUBEBUILDER_ASSETS:-}
if [ -n "$assets" ]; then
  assets=$(cd "$assets" 2>/dev/null && pwd) || die "KUBEBUILDER_ASSETS names $KUBEBUILDER_ASSETS, which is no folder"
fi
if [ -n "$assets" ] && complete "$assets"; then
  say "from KUBEBUILDER_ASSETS: all of them"
  printf '%s\n' "$assets"
  exit
fi
folder=$cache/$(folder_name)
if complete "$folder"; then
  say "from the cache: all of them"
else
  lock
  complete "$folder" || fill
fi
printf '%s\n' "$folder"
