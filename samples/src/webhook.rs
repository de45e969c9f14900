//! The webhook of the sample Kinds.

use reknit::prelude::*;

use crate::{AddressableService, SimpleDeployment};

/// Defaults both sample Kinds, and validates AddressableService. For SimpleDeployment the schema of its
/// CustomResourceDefinition suffices.
pub fn webhook(_: &Context) -> Result<Webhook> {
    Ok(Webhook::new("samples.knative.dev")
        .defaulting::<AddressableService>()
        .validation::<AddressableService>()
        .defaulting::<SimpleDeployment>())
}
