#!/usr/bin/env bash
# Generates the CustomResourceDefinitions from the types, and the RBAC manifests from the constructors: config/300-crds.yaml,
# config/200-rbac.yaml and those of config/shadow/ and config/namespaced/ of the sample, and crd.yaml and rbac.yaml of each example.
#
#   hack/update-codegen.sh
set -euo pipefail
# shellcheck source=hack/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/../samples"

for manifests in crd rbac; do
  cargo run --quiet --package cargo-reknit -- "$manifests" --write
done
rbac() { cargo run --quiet --bin rbac -- "$@" -- --namespace team-a; }
roles=$(rbac --in team-a) cluster_role=$(rbac --kinds ClusterRole)
echo "$roles" >config/namespaced/rbac.yaml
echo "$cluster_role" >config/namespaced/cluster-role.yaml

cd ..
UPDATE_DEFINITIONS=1 cargo test --quiet --package examples --test unit -- \
  the_definitions_are_those_of_the_types the_rbac_manifests_are_those_of_the_constructors >/dev/null
ls config/{200-rbac,300-crds,shadow/rbac,namespaced/rbac,namespaced/cluster-role}.yaml examples/*/crd.yaml examples/*/rbac.yaml
