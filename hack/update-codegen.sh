#!/usr/bin/env bash
# Generates the CustomResourceDefinitions from the types, and the RBAC manifests from the constructors: config/300-*.yaml,
# config/20*.yaml and config/namespaced/rbac.yaml of the samples, and crd.yaml and rbac.yaml of each example.
#
#   hack/update-codegen.sh
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

schema() {
  cargo run --quiet --package reknit-samples --bin schema -- "$@"
}

kinds=$(schema list)
for kind in $kinds; do
  file="config/300-$(tr '[:upper:]' '[:lower:]' <<<"$kind").yaml"
  {
    echo "# Generated from samples/ by hack/update-codegen.sh: change the type and run that."
    schema dump "$kind"
  } >"$file.new"
  mv "$file.new" "$file"
  echo "$file"
done

# Prints RBAC manifests from the constructors of the sample controllers (rbac) or of the webhook (webhook-rbac).
manifests() {
  cargo run --quiet --package reknit-samples --bin "$@"
}

write() {
  local file="$1"
  shift
  "$@" >"$file.new"
  mv "$file.new" "$file"
  echo "$file"
}

write config/200-serviceaccount.yaml manifests rbac -- --kinds ServiceAccount
write config/200-clusterrole.yaml manifests rbac -- --kinds ClusterRole
write config/200-role.yaml manifests rbac -- --kinds Role
write config/201-clusterrolebinding.yaml manifests rbac -- --kinds ClusterRoleBinding
write config/201-rolebinding.yaml manifests rbac -- --kinds RoleBinding
write config/200-webhook.yaml manifests webhook-rbac
write config/namespaced/rbac.yaml manifests rbac -- --namespace team-a --in team-a

UPDATE_DEFINITIONS=1 cargo test --quiet --package examples --test unit -- \
  the_definitions_are_those_of_the_types the_rbac_manifests_are_those_of_the_constructors >/dev/null
ls examples/*/crd.yaml examples/*/rbac.yaml
