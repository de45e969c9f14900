#!/usr/bin/env bash
# Puts the programs of a Kubernetes control plane into one folder, for tests, and prints that folder as its last line.
#
#   hack/setup-envtest.sh                  kube-apiserver, etcd, kubectl; and what nodes need: kube-controller-manager,
#                                          kube-scheduler, and kwok with its stages
#   hack/setup-envtest.sh --control-plane  the first three only, which is all that a ControlPlane without nodes starts
#
# Each program comes from the first of these that has it; stderr says which one it was:
#
#   1. the folder that KUBEBUILDER_ASSETS names
#   2. the cache, ${XDG_CACHE_HOME:-~/.cache}/reknit/envtest, one folder a version, there only when complete
#   3. PATH, for kubectl
#   4. the official envtest archives, checksums verified (kube-apiserver, etcd, kubectl); ENVTEST_RELEASES_URL replaces
#      the address under which their index envtest-releases.yaml lies
#   5. its Go module, in the version that hack/envtest/go.mod names: about five minutes for all of them on two cores
#
# Go's module and build caches for the fifth are the script's own (4 GB), kept when it is interrupted and removed when
# it is done: nobody wants them in ~/go for programs that are built once.
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

# Prints linux-amd64 and the like, as the archives are named.
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

# The wanted programs that are not in the folder $1.
missing() {
  local program
  for program in $(wanted); do
    [ -x "$1/$program" ] || printf '%s\n' "$program"
  done
}

complete() { [ -z "$(missing "$1")" ]; }

# Links into the staging folder what the folder $1 has of what is missing. $2 says what that folder is.
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

# A kubectl of the user's own is as good as any.
take_kubectl_from_path() {
  local found
  { missing "$staging" | grep -qx kubectl && found=$(command -v kubectl); } || return 0
  ln -sf "$found" "$staging/kubectl"
  say "from PATH: $found"
}

# Prints "version checksum address" of the archive for this platform: $version itself, or else the newest of its minor.
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

# The time limits add up to less than five seconds where nothing answers.
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

# Runs go in the module of hack/envtest, untouched by the caller's settings for modules of their own. -modcacherw, so
# that the module cache can be removed again. It takes the place of the shell that calls it, which is to be a subshell:
# so the process to end is Go itself.
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
  # Without the lock, which would otherwise be held for as long as a part of the build outlives this script.
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

# What kwok does to nodes and pods; without stages it does not start.
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

# What cannot be removed, as where something still writes there, is left for the next run: it takes nothing from what
# was built.
remove_build() {
  { chmod -R u+w "$cache/build" && rm -rf "$cache/build"; } 2>/dev/null || true
}

# Two runs may ask for the same: the second waits, and finds what the first made.
lock() {
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  try_lock 6 || { say "waiting for another run to finish"; try_lock 2; } || die "cannot lock $cache/lock"
}

# $1 is flock's operation: 2 waits, 6 does not. macOS has no flock(1), but perl.
try_lock() {
  if command -v flock >/dev/null; then
    if [ "$1" = 6 ]; then flock -n 9; else flock 9; fi
  else
    perl -e 'open(my $lock, ">&=", 9) or exit 1; flock($lock, $ARGV[0]) or exit 1' "$1"
  fi
}

# The name of the folder to fill: that of the version; another one where the user's own programs are linked into it.
folder_name() {
  local name=$version-$platform
  [ "$what" = all ] || name=$name-control-plane
  [ -z "$assets" ] || name=$name-with-$(printf '%s' "$assets" | cksum | cut -d' ' -f1)
  printf '%s' "$name"
}

# What does the work alone, under the lock: other folders named .new are what killed runs left.
fill() {
  rm -rf "$cache"/.new.*
  work=$(mktemp -d "$cache/.new.XXXXXX")
  building=
  trap 'clean_up' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  staging=$work/folder
  mkdir "$staging"
  # A copy: what is there is kept, and in use perhaps, should the rest not be had.
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
