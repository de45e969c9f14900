//! The Kind WarmGreeting and its controller.

mod controller;
mod kind;
// reknit:scaffold:modules

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::crd::merge_crds;
use reknit::{apis::definition_of, prelude::*};

pub use controller::controller;
pub use kind::{WarmGreeting, WarmGreetingSpec};

/// Returns the CustomResourceDefinition with all versions of the Kind.
pub fn definition() -> Result<CustomResourceDefinition> {
    let versions = vec![
        definition_of::<WarmGreeting>()?,
        // reknit:scaffold:versions
    ];
    let definition = merge_crds(versions, "v9alpha1")?;
    // reknit:scaffold:conversion
    Ok(definition)
}
