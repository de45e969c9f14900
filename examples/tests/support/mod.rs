//! Helpers that the unit and the integration tests of the examples share.
#![allow(dead_code, reason = "each test crate uses only some of the helpers")]

pub(crate) mod cronjob;
pub(crate) mod eventing;
pub(crate) mod foo;
pub(crate) mod ingress;
pub(crate) mod mydemo;
pub(crate) mod sequence;
pub(crate) mod waitdeployment;

#[path = "../../../tests/support/cargo.rs"]
pub(crate) mod cargo;
#[path = "../../../tests/support/process.rs"]
pub(crate) mod process;
#[path = "../../../tests/support/wait.rs"]
pub(crate) mod wait;

use std::path::PathBuf;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use reknit::prelude::*;

/// The examples with custom resources.
pub(crate) const EXAMPLES: [&str; 7] =
    ["cronjob", "eventing", "foo", "ingress", "mydemo", "sequence", "waitdeployment"];

/// The program of one of these examples.
pub(crate) fn program_of(example: &str) -> Main {
    match example {
        "cronjob" => cronjob::program::program(),
        "eventing" => eventing::program::program(),
        "foo" => foo::program::program(),
        "ingress" => ingress::program::program(),
        "mydemo" => mydemo::program::program(),
        "sequence" => sequence::program::program(),
        "waitdeployment" => waitdeployment::program::program(),
        _ => panic!("{example} is not an example with custom resources"),
    }
}

/// A file in the folder of an example.
pub(crate) fn file(example: &str, name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), example, name].iter().collect()
}

/// The desired number of replicas of a Deployment.
pub(crate) fn replicas(deployment: &Deployment) -> Option<i32> {
    deployment.spec.as_ref()?.replicas
}

/// The kind and the name of a Deployment's controller, from its owner references.
pub(crate) fn controller_of(deployment: &Deployment) -> Option<(String, String)> {
    let owner = deployment.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    Some((owner.kind.clone(), owner.name.clone()))
}
