#!/usr/bin/env bash
# Tests the console in a real browser, headless Chromium. If it is not installed, the script installs Debian's package,
# which needs root. The tests leave screenshots in target/console/: look at them after a change of the page.
#
#   hack/browser.sh                  runs the tests
#   CHROMIUM=/path hack/browser.sh   uses this browser
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_browser() {
  local name
  for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
    [ -n "$name" ] && command -v "$name" && return
  done
  return 1
}

install_browser() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "browser: Chromium is not installed: install it, or name it by CHROMIUM" >&2
    return 1
  fi
  echo "browser: installing Debian's package chromium" >&2
  { apt-get update --quiet && DEBIAN_FRONTEND=noninteractive \
    apt-get install --quiet --yes --no-install-recommends chromium; } >&2
}

CHROMIUM=$(find_browser) || { install_browser && CHROMIUM=$(find_browser); }
export CHROMIUM
# One at a time: a test measures whether the page stays responsive.
cargo test --locked --package reknit-sharedmain --lib console::tests::pages -- --ignored --test-threads=1 --show-output
