#!/usr/bin/env bash
# Builds the images that are pulled from public registries elsewhere, from Debian's packages and the Rust toolchain of this
# machine, under the same names:
#
#   docker.io/library/rust:1.95.0-bookworm   Debian 12 with gcc, g++, make and certificates, and the toolchain
#   gcr.io/distroless/cc-debian12:nonroot    the packages of distroless, unpacked: no shell, user 65532
#   registry.k8s.io/pause:3.10               the source of the Kubernetes module, linked statically; also an archive
#
# It needs root, buildah, mmdebstrap, gcc and Go. It takes about two minutes, and 2 GB. Images that exist are kept.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/e2e/nodes/env.sh
source "$here/env.sh"
rust=1.95.0
pause=registry.k8s.io/pause:3.10
mkdir -p "$images"
cd "$images"

exists() { storage inspect --type image "$1" >/dev/null 2>&1; }

# commit NAME ROOT OPTIONS...: makes an image of one layer from the folder ROOT, and removes the folder. The options are
# those of `buildah config`.
commit() {
  local name=$1 root=$2 container
  shift 2
  container=$(storage from scratch)
  storage add --quiet "$container" "$root" / >/dev/null
  storage config "$@" "$container"
  storage commit --quiet --rm "$container" "$name" >/dev/null
  rm -rf "$root"
  say "built $name"
}

# Creates an empty folder that pods of any user can read.
empty() {
  rm -rf "$1"
  mkdir -p "$1"
  chmod 755 "$1"
}

rust_image() {
  local root=$images/rust toolchain program
  toolchain=$rust-$(rustup run $rust rustc -vV | sed -n 's/^host: //p')
  rm -rf "$root"
  mmdebstrap --quiet --variant=minbase --include=gcc,g++,make,git,ca-certificates,pkg-config bookworm "$root"
  # The certificates of this machine, which may be behind a proxy with a CA of its own.
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  mkdir -p "$root/usr/local/cargo/bin" "$root/usr/local/rustup/toolchains/$toolchain"
  cp -L "$(command -v rustup)" "$root/usr/local/cargo/bin/rustup"
  for program in cargo rustc rustdoc; do ln -s rustup "$root/usr/local/cargo/bin/$program"; done
  tar -C "$(rustup run $rust rustc --print sysroot)" --exclude=./share -c . |
    tar -C "$root/usr/local/rustup/toolchains/$toolchain" -x
  printf 'version = "12"\nprofile = "minimal"\ndefault_toolchain = "%s"\n\n[overrides]\n' "$toolchain" \
    >"$root/usr/local/rustup/settings.toml"
  commit docker.io/library/rust:$rust-bookworm "$root" --cmd bash --env RUSTUP_HOME=/usr/local/rustup \
    --env CARGO_HOME=/usr/local/cargo --env RUST_VERSION=$rust \
    --env PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
}

# Prints an entry of /etc/passwd for each user of distroless.
distroless_users() {
  printf '%s\n' root:x:0:0:root:/root:/sbin/nologin nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin \
    nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin
}

distroless_image() {
  local root=$images/distroless debs=$images/debs package
  empty "$root"
  empty "$debs"
  for package in base-files netbase tzdata media-types libc6 libssl3 libgcc-s1 gcc-12-base libgomp1 libstdc++6 \
    ca-certificates; do
    (cd "$debs" && apt-get download -qq "$package" 2>/dev/null) || die "Debian has no package $package: run apt-get update"
  done
  for package in "$debs"/*.deb; do dpkg-deb -x "$package" "$root"; done
  rm -rf "$debs" "$root"/usr/share/{doc,man,lintian,bug} "$root"/etc/{cron*,update-motd.d}
  mkdir -p "$root"/etc/ssl/certs "$root"/home/nonroot "$root"/root "$root"/tmp
  find "$root/usr/share/ca-certificates/mozilla" -name '*.crt' -exec cat {} + >"$root/etc/ssl/certs/ca-certificates.crt"
  distroless_users >"$root/etc/passwd"
  printf '%s\n' root:x:0: nobody:x:65534: tty:x:5: staff:x:50: nonroot:x:65532: >"$root/etc/group"
  printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
  chown 65532:65532 "$root/home/nonroot"
  chmod 700 "$root/home/nonroot" "$root/root"
  chmod 1777 "$root/tmp"
  commit gcr.io/distroless/cc-debian12:nonroot "$root" --user 65532 --workingdir /home/nonroot \
    --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
}

# The source is in the Kubernetes module, of the version that kubelet is built from.
pause_image() {
  local root=$images/pause kubernetes
  kubernetes=$(cd "$here/programs" && GOWORK=off GOTOOLCHAIN=auto go list -m k8s.io/kubernetes | tr ' ' @)
  kubernetes=$(go mod download -json "$kubernetes" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  empty "$root"
  gcc -Os -static -DVERSION=3.10 -o "$root/pause" "$kubernetes/build/pause/linux/pause.c"
  strip "$root/pause"
  commit $pause "$root" --user 65535:65535 --entrypoint '["/pause"]'
  rm -f pause.tar
  storage push --quiet $pause "docker-archive:$images/pause.tar.new:$pause"
  mv pause.tar.new pause.tar
}

{ exists $pause && [ -f pause.tar ]; } || pause_image
exists gcr.io/distroless/cc-debian12:nonroot || distroless_image
exists docker.io/library/rust:$rust-bookworm || rust_image
