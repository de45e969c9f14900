#!/usr/bin/env bash
# The runner of cargo in hack/test.sh: runs a test binary so that it prints the time of each test. The option is
# unstable, and test binaries of a stable toolchain accept it only with RUSTC_BOOTSTRAP. The compile-fail tests run
# without it, because the cargo that they start would see the variable and build everything again.
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
