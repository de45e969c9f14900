//! The crd.yaml of each example is generated from its types.

use std::fs;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use reknit::apis::kubernetes_schema;

use crate::support::{
    file, foo::program::Foo, mydemo::program::Mydemo, waitdeployment::program::Waitdeployment,
};

/// The examples with a custom resource, and their definitions.
fn definitions() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![("foo", Foo::crd()), ("mydemo", Mydemo::crd()), ("waitdeployment", Waitdeployment::crd())]
}

/// hack/update-codegen.sh sets UPDATE_DEFINITIONS and runs this test to write the files.
#[test]
fn the_definitions_are_those_of_the_types() {
    let update = std::env::var_os("UPDATE_DEFINITIONS").is_some();
    for (example, definition) in definitions() {
        let path = file(example, "crd.yaml");
        let yaml = serde_yaml_ng::to_string(&kubernetes_schema(definition)).expect("a definition is YAML");
        let expected = format!(
            "# Generated from main.rs by hack/update-codegen.sh: change the type and run that.\n{yaml}"
        );
        if update {
            fs::write(&path, &expected).expect("the definition is written");
        }
        let actual = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(actual, expected, "{}: run hack/update-codegen.sh", path.display());
    }
}
