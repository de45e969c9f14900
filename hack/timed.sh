#!/usr/bin/env bash
# Runs a test binary so that it prints the time of each test. hack/test.sh sets this script as cargo's runner. On a
# stable toolchain the option --report-time needs RUSTC_BOOTSTRAP. The compile-fail tests run without the
# option, because the cargo that they start would inherit the variable and build everything again.
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
