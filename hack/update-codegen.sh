#!/usr/bin/env bash
# Writes config/300-*.yaml, the CustomResourceDefinitions, from the types in apis/samples.
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
