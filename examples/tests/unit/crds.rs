//! The crd.yaml of each example is generated from its types.

use std::fs;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use reknit::apis::{definition_of, kubernetes_schema};
use schemars::JsonSchema;

use crate::support::{
    cronjob::program::CronJob,
    eventing::program::{self as eventing, Broker, ContainerSource, SinkBinding, Trigger},
    file,
    foo::program::Foo,
    ingress::program::Route,
    mydemo::program::Mydemo,
    sequence::program::{InMemoryChannel, Sequence, Subscription},
    waitdeployment::program::Waitdeployment,
};

/// The examples with custom resources, and their definitions.
fn definitions() -> Vec<(&'static str, Vec<CustomResourceDefinition>)> {
    vec![
        ("cronjob", vec![of::<CronJob>()]),
        (
            "eventing",
            vec![
                of::<ContainerSource>(),
                of::<SinkBinding>(),
                of::<Trigger>(),
                of::<Broker>(),
                of::<eventing::InMemoryChannel>(),
                of::<eventing::Subscription>(),
            ],
        ),
        ("foo", vec![of::<Foo>()]),
        ("ingress", vec![of::<Route>()]),
        ("mydemo", vec![of::<Mydemo>()]),
        ("sequence", vec![of::<Sequence>(), of::<Subscription>(), of::<InMemoryChannel>()]),
        ("waitdeployment", vec![kubernetes_schema(Waitdeployment::crd())]),
    ]
}

fn of<K: CustomResourceExt + JsonSchema>() -> CustomResourceDefinition {
    definition_of::<K>().unwrap_or_else(|error| panic!("{error}"))
}

/// hack/update-codegen.sh sets UPDATE_DEFINITIONS and runs this test to write the files.
#[test]
fn the_definitions_are_those_of_the_types() {
    let update = std::env::var_os("UPDATE_DEFINITIONS").is_some();
    for (example, definitions) in definitions() {
        let path = file(example, "crd.yaml");
        let yaml = definitions
            .iter()
            .map(|definition| serde_saphyr::to_string(definition).expect("a definition is YAML"));
        let yaml: Vec<String> = yaml.collect();
        let expected = format!(
            "# Generated from the types by hack/update-codegen.sh: change the type and run that.\n{}",
            yaml.join("---\n")
        );
        if update {
            fs::write(&path, &expected).expect("the definition is written");
        }
        let actual = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(actual, expected, "{}: run hack/update-codegen.sh", path.display());
    }
}

/// `kubectl apply` stores the definition in an annotation, and annotations have at most 256 KiB.
#[test]
fn the_definitions_are_small_enough_for_kubectl_apply() {
    for (example, definitions) in definitions() {
        for definition in definitions {
            let json = serde_json::to_string(&definition).expect("a definition is JSON");
            assert!(json.len() < 256 * 1024, "{example}: {} bytes", json.len());
        }
    }
}
