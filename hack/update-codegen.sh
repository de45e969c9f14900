#!/usr/bin/env bash
# Generates the CustomResourceDefinitions: config/300-*.yaml from the types in apis/samples, and examples/*/crd.yaml
# from the types of each example.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

schema() {
  cargo run --quiet --package samples-controller --bin schema -- "$@"
}

kinds=$(schema list)
for kind in $kinds; do
  file="config/300-$(tr '[:upper:]' '[:lower:]' <<<"$kind").yaml"
  {
    echo "# Generated from apis/samples by hack/update-codegen.sh: change the type and run that."
    schema dump "$kind"
  } >"$file.new"
  mv "$file.new" "$file"
  echo "$file"
done

UPDATE_DEFINITIONS=1 cargo test --quiet --package examples --test unit the_definitions_are_those_of_the_types >/dev/null
ls examples/*/crd.yaml
