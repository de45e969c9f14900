#!/usr/bin/env bash
# Runs a test binary so that it prints how long each test took: cargo's runner in hack/test.sh. The option is unstable, and
# test binaries accept it from a stable toolchain only with RUSTC_BOOTSTRAP. The compile-fail tests go without: the cargo
# that they start would see the variable too, and build everything again.
set -euo pipefail

case $1 in
  */compile_fail-*) ;;
  */deps/*)
    if grep -q -- --report-time < <("$1" --help 2>/dev/null); then
      RUSTC_BOOTSTRAP=1 exec "$@" -Z unstable-options --report-time
    fi
    ;;
esac
exec "$@"
