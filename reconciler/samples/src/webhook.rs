//! The webhook of the sample Kinds.

use reknit::prelude::*;
use samples_apis::{AddressableService, SimpleDeployment};

/// Defaulting and validation of the sample Kinds.
pub fn webhook(_: &Context) -> Result<Webhook> {
    Ok(Webhook::new("samples.knative.dev")
        .defaulting::<AddressableService>()
        .validation::<AddressableService>()
        .defaulting::<SimpleDeployment>())
}
