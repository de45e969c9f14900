#!/usr/bin/env bash
# Builds the book in docs/ with mdBook, and checks its links.
#
#   hack/docs.sh           builds target/book/index.html
#   hack/docs.sh --serve   also serves it on http://127.0.0.1:3000 until Ctrl-C
#   hack/docs.sh --check   only checks links and the summary, without mdBook, as cargo test does
#
# If mdBook is not installed, cargo installs it into ~/.cache/reknit.
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=0.5.4
repository=https://github.com/reknit/reknit

# Prints the path of mdbook, after installing it if necessary.
mdbook_path() {
  local installed=$HOME/.cache/reknit/mdbook-$version/bin/mdbook
  if command -v mdbook; then return; fi
  if [ ! -x "$installed" ]; then
    nice cargo install mdbook --locked --version "$version" --root "${installed%/bin/mdbook}" >&2
  fi
  echo "$installed"
}

# copy_pages FOLDER: copies the book. Links that lead out of docs/ become links to the repository, except for the charts
# of the benchmarks, which are copied too. mdBook writes the page README.md as index.html, but does not change links to it.
copy_pages() {
  rm -rf "$1"
  mkdir -p "$1"
  cp -r book.toml docs "$1"
  cp -r benches/results "$1/docs/results"
  find "$1/docs" -name '*.md' ! -name SUMMARY.md -exec sed -i -E \
    -e 's#\]\(README\.md#](index.html#g' \
    -e 's#\]\(\.\./benches/results/([^)]*\.svg)\)#](results/\1)#g' \
    -e "s#\]\((\.\./)+(README|CONTRIBUTING|config|sharedmain|reconciler|samples|tests|benches|examples|hack)#](${repository}/blob/main/\2#g" {} +
}

case "${*:---build}" in
  --check)
    exec cargo test --locked --package reknit --test docs
    ;;
  --build | --serve)
    cargo test --locked --package reknit --test docs
    mdbook=$(mdbook_path)
    copy_pages target/book-source
    if [ "${1-}" = --serve ]; then
      exec "$mdbook" serve target/book-source --dest-dir "$PWD/target/book" --hostname 127.0.0.1 --port 3000
    fi
    "$mdbook" build target/book-source --dest-dir "$PWD/target/book"
    echo "target/book/index.html"
    ;;
  *)
    echo "usage: hack/docs.sh [--serve | --check]" >&2
    exit 2
    ;;
esac
