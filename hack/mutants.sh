#!/usr/bin/env bash
# Plants each fault of simulation/mutants.patch in a copy of the framework, and checks that the simulations find it. The
# faults are switched on by the environment variable REKNIT_MUTANT, so that one build runs all.
#
#   hack/mutants.sh              all mutants
#   hack/mutants.sh NAME...      some of them
#
# Prints the rule that finds each mutant, and the first seed. Exits with 1 if the patch does not apply, if a mutant is not
# found, or if the simulations fail without one. REKNIT_SIM_SEEDS is the number of seeds, 200 unless it is set.
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

patch=$PWD/simulation/mutants.patch
mapfile -t all < <(sed -nE 's/^\+.*is_mutant\("([a-z0-9_]+)"\).*/\1/p' "$patch" | sort -u)
mutants=("$@")
if [ ${#mutants[@]} = 0 ]; then mutants=("${all[@]}"); fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$work"
(cd "$work" && git apply --whitespace=nowarn "$patch")

export CARGO_TARGET_DIR=$PWD/target/mutants RUST_BACKTRACE=0 REKNIT_SIM_SEEDS=${REKNIT_SIM_SEEDS:-200}
(cd "$work" && cargo test --locked -p reknit-simulation --profile simulate --test simulations --no-run)

# simulate MUTANT: runs the simulations of controllers without a bug.
simulate() {
  (cd "$work" && REKNIT_MUTANT=$1 cargo test --locked -q -p reknit-simulation --profile simulate --test simulations -- \
    --skip planted:: --skip determinism::) >"$work/log" 2>&1
}

if ! simulate none; then
  cat "$work/log" >&2
  echo "the simulations fail without a mutant" >&2
  exit 1
fi
missed=0
for mutant in "${mutants[@]}"; do
  if simulate "$mutant"; then
    printf '%-32s NOT FOUND in %s seeds\n' "$mutant" "$REKNIT_SIM_SEEDS"
    missed=1
  else
    rule=$(sed -n 's/^violated: //p' "$work/log" | sed -n 1p)
    seed=$(sed -n 's/^seed \([0-9]*\),.*/\1/p' "$work/log" | sort -n | sed -n 1p)
    printf '%-32s %s (seed %s)\n' "$mutant" "$rule" "$seed"
  fi
done
exit $missed
