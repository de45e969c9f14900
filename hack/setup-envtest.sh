#!/usr/bin/env bash
# Puts the programs of a Kubernetes control plane into one folder, and prints that folder as its last line.
#
#   hack/setup-envtest.sh                  kube-apiserver, etcd, kubectl; and for nodes kube-controller-manager,
#                                          kube-scheduler, and kwok with its stages
#   hack/setup-envtest.sh --control-plane  only kube-apiserver, etcd, kubectl, which a ControlPlane without nodes needs
#   hack/setup-envtest.sh --version v1.33  all of them, with the Kubernetes of a folder in hack/envtest
#
# Each program comes from the first of these sources that has it. The script prints the source on stderr:
#
#   1. the folder that KUBEBUILDER_ASSETS names, unless there is a --version
#   2. the cache, ${XDG_CACHE_HOME:-~/.cache}/reknit/envtest, with one complete folder for each version
#   3. PATH, for kubectl
#   4. the official envtest archives, with verified checksums (kube-apiserver, etcd, kubectl); ENVTEST_RELEASES_URL
#      replaces the address of their index, envtest-releases.yaml
#   5. its Go module, in the version of hack/envtest/go.mod: about five minutes for all programs on two cores
#
# With --version, everything that does not belong to Kubernetes, and kubectl, is that of a run without it.
#
# Go builds use module and build caches of their own (4 GB), because programs that are built once need no cache in ~/go.
# A complete run removes these caches. An interrupted run keeps them.
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

control_plane=(kube-apiserver etcd kubectl)
nodes=(kube-controller-manager kube-scheduler kwok)
any_version=(etcd kubectl kwok)
releases=${ENVTEST_RELEASES_URL:-https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD}
modules=$(cd "$(dirname "${BASH_SOURCE[0]}")/envtest" && pwd)
# Checksums of archives, by hack/pin.sh: those of the index come from the same place as the archives.
pins=$modules/archives.sha512
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

# Prints the names of the requested programs.
list_requested() {
  printf '%s\n' "${control_plane[@]}"
  [ "$programs" = control-plane ] || printf '%s\n' "${nodes[@]}"
}

# Prints the names of the requested programs that are not in the folder $1.
list_missing() {
  local program
  for program in $(list_requested); do
    [ -x "$1/$program" ] || printf '%s\n' "$program"
  done
}

is_complete() { [ -z "$(list_missing "$1")" ]; }

# Links missing programs from the folder $1 into the staging folder. $2 names that folder in the log.
link_from() {
  local program linked=()
  [ -d "$1" ] || return 0
  for program in $(list_missing "$staging"); do
    [ -x "$1/$program" ] || continue
    if [ "$program" = kwok ]; then
      [ -d "$1/kwok-stages" ] || continue
      rm -rf "$staging/kwok-stages"
      ln -s "$1/kwok-stages" "$staging/kwok-stages"
    fi
    ln -sf "$1/$program" "$staging/$program"
    linked+=("$program")
  done
  [ ${#linked[@]} -eq 0 ] || say "from $2 $1: ${linked[*]}"
}

# Prints the version of Kubernetes in $modules, which its replace lines name too.
kubernetes_version() {
  sed -nE 's/^(require)?[[:space:]]*k8s.io\/kubernetes (v[0-9.]+).*/\2/p' "$modules/go.mod"
}

# Links the programs that do not depend on the version of Kubernetes from the folder $1.
link_any_version() {
  local program
  for program in "${any_version[@]}"; do
    ln -sf "$1/$program" "$staging/$program"
  done
  ln -sfn "$1/kwok-stages" "$staging/kwok-stages"
}

# Any version of kubectl works.
link_kubectl_from_path() {
  local found
  { list_missing "$staging" | grep -qx kubectl && found=$(command -v kubectl); } || return 0
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

# Downloads the official archive and moves its programs into the staging folder. If no server responds, this takes less
# than five seconds.
download_archive() {
  local index=$work/index.yaml archive=$work/archive.tar.gz release checksum address pinned program file
  command -v curl >/dev/null || { say "curl is not installed: the official archives are not used"; return 1; }
  say "asking $releases for the official archives"
  curl -fsSL --connect-timeout 2 --max-time 2.5 -o "$index" "$releases/envtest-releases.yaml" >&2 ||
    { say "not reached"; return 1; }
  read -r release checksum address <<<"$(choose_archive "$index" || true)"
  [ -n "${address:-}" ] || { say "no archive of ${version%.*} for $platform there"; return 1; }
  pinned=$(awk -v address="$address" '$2 == address { print $1 }' "$pins" 2>/dev/null || true)
  [ -n "$pinned" ] || say "the checksum of $address is not pinned, and comes from its own index: run hack/pin.sh"
  checksum=${pinned:-$checksum}
  say "downloading $address"
  curl -fsSL --connect-timeout 2 --speed-limit 1000 --speed-time 2 -o "$archive" "$address" >&2 ||
    { say "the download failed or was cut off: not used"; return 1; }
  [ "$(sha512 "$archive")" = "$checksum" ] ||
    { say "its checksum is not the published $checksum: not used"; return 1; }
  mkdir "$work/archive"
  tar -xzf "$archive" -C "$work/archive" >&2 ||
    { say "it cannot be unpacked: not used"; return 1; }
  for program in $(list_missing "$staging"); do
    file=$(find "$work/archive" -type f -name "$program" | head -n 1)
    [ -n "$file" ] || continue
    chmod +x "$file" && mv -f "$file" "$staging/$program" || return 1
    say "from the official archive of $release: $program"
  done
}

# Tells whether the staging folder has the programs of the control plane.
has_control_plane() {
  local program
  for program in "${control_plane[@]}"; do
    [ -x "$staging/$program" ] || return 1
  done
}

# Prints the Go package of the program $1.
package_of() {
  case $1 in
    etcd) printf 'go.etcd.io/etcd/server/v3' ;;
    kwok) printf 'sigs.k8s.io/kwok/cmd/kwok' ;;
    *) printf 'k8s.io/kubernetes/cmd/%s' "$1" ;;
  esac
}

# Runs the command in the module of hack/envtest, without the caller's settings for Go modules. -modcacherw makes the
# module cache removable. The command replaces the shell, which has to be a subshell, so that a signal reaches Go
# itself.
exec_in_modules() {
  cd "$modules"
  exec env -u GOOS -u GOARCH GOWORK=off GOTOOLCHAIN=auto CGO_ENABLED=0 GOFLAGS=-modcacherw \
    GOMODCACHE="$cache/build/modules" GOCACHE="$cache/build/objects" "$@"
}

# Prints the linker flags with the version that kube-apiserver reports to its clients.
version_flags() {
  local package=k8s.io/component-base/version minor=${version#v1.}
  printf -- '-X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=%s' \
    "$package" "$version" "$package" "$package" "${minor%.*}"
}

# Builds the program $1 into the staging folder, and logs every 20 seconds that the build still runs.
build() {
  local program=$1 began=$SECONDS logged=$SECONDS
  say "building $program"
  # The build does not inherit the lock (9), which would otherwise stay held if a part of the build outlived this
  # script.
  exec_in_modules go build -trimpath -ldflags "-s -w $(version_flags)" -o "$work/$program" "$(package_of "$program")" \
    >&2 9>&- &
  building=$!
  while kill -0 "$building" 2>/dev/null; do
    sleep 0.2
    if [ $((SECONDS - logged)) -ge 20 ]; then
      logged=$SECONDS
      say "still building $program, $((SECONDS - began)) s"
    fi
  done
  wait "$building" || die "building $program from its Go module failed"
  building=
  [ "$program" != kwok ] || copy_stages
  mv -f "$work/$program" "$staging/$program"
  say "from its Go module: $program, in $((SECONDS - began)) s"
}

# Copies kwok's stages, which define the lifecycle of its nodes and pods. kwok does not start without stages.
copy_stages() {
  local stages
  stages=$(exec_in_modules go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
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
    die "neither Go nor python3 with pip is installed: install Go from https://go.dev/dl, or set KUBEBUILDER_ASSETS" \
      "to a folder with kube-apiserver and etcd"
  for program in $(list_missing "$staging"); do
    build "$program"
  done
}

# Removes the build caches. Files that cannot be removed, for example because a process still writes them, are left for
# the next run.
remove_build_caches() {
  { chmod -R u+w "$cache/build" && rm -rf "$cache/build"; } 2>/dev/null || true
}

# Takes the lock. A concurrent run waits for it, and finds the result of this run.
lock() {
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  try_lock 6 || { say "waiting for another run to finish"; try_lock 2; } || die "cannot lock $cache/lock"
}

# Takes the lock with the operation $1 of flock(2): 2 (LOCK_EX) waits, 6 (LOCK_EX | LOCK_NB) does not. macOS has no
# flock(1), but it has perl.
try_lock() {
  if command -v flock >/dev/null; then
    if [ "$1" = 6 ]; then flock -n 9; else flock 9; fi
  else
    perl -e 'open(my $lock, ">&=", 9) or exit 1; flock($lock, $ARGV[0]) or exit 1' "$1"
  fi
}

# Prints the name of the folder to fill. It contains the version, and a checksum of KUBEBUILDER_ASSETS if programs of
# that folder are linked into it.
folder_name() {
  local name=$version-$platform
  [ "$programs" = all ] || name=$name-control-plane
  [ -z "$assets" ] || name=$name-with-$(printf '%s' "$assets" | cksum | cut -d' ' -f1)
  printf '%s' "$name"
}

# Fills the folder. The caller holds the lock, so existing folders named .new were left by killed runs.
fill() {
  rm -rf "$cache"/.new.*
  work=$(mktemp -d "$cache/.new.XXXXXX")
  building=
  trap 'clean_up' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  staging=$work/folder
  mkdir "$staging"
  # Copied, because the existing folder may be in use, and is kept if the missing programs cannot be installed.
  [ ! -d "$folder" ] || cp -a "$folder/." "$staging/"
  [ -z "$others" ] || link_any_version "$others"
  [ -z "$assets" ] || link_from "$assets" KUBEBUILDER_ASSETS
  link_from "$cache/$version-$platform" "the cache"
  link_from "$cache/$version-$platform-control-plane" "the cache"
  link_kubectl_from_path
  has_control_plane || download_archive || true
  is_complete "$staging" || build_missing
  rm -rf "$folder"
  mv "$staging" "$folder"
  remove_build_caches
}

clean_up() {
  [ -z "$building" ] || kill "$building" 2>/dev/null || true
  rm -rf "$work"
}

programs=all
others= # the folder with the programs of any version, if there is a --version
case "$#:${1:-}" in
  0:) ;;
  1:--control-plane) programs=control-plane ;;
  2:--version)
    [ -f "$modules/$2/go.mod" ] || die "no version $2: there are $(cd "$modules" && echo v*)"
    modules=$modules/$2
    others=$("${BASH_SOURCE[0]}" | tail -n 1)
    unset KUBEBUILDER_ASSETS
    ;;
  *) die "usage: hack/setup-envtest.sh [--control-plane | --version VERSION]" ;;
esac
version=$(kubernetes_version)
platform=$(platform)
assets=${KUBEBUILDER_ASSETS:-}
if [ -n "$assets" ]; then
  assets=$(cd "$assets" 2>/dev/null && pwd) || die "KUBEBUILDER_ASSETS is not a folder: $KUBEBUILDER_ASSETS"
fi
if [ -n "$assets" ] && is_complete "$assets"; then
  say "from KUBEBUILDER_ASSETS: all of them"
  printf '%s\n' "$assets"
  exit
fi
folder=$cache/$(folder_name)
if is_complete "$folder"; then
  say "from the cache: all of them"
else
  lock
  is_complete "$folder" || fill
fi
printf '%s\n' "$folder"
