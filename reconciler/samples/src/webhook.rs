//! What the API server asks about the sample Kinds.

use reknit::prelude::*;
use samples_apis::{AddressableService, SimpleDeployment};

/// Defaults and rules of the sample Kinds.
pub fn webhook(_: &Context) -> Result<Webhook> {
    Ok(Webhook::new("samples.knative.dev")
        .defaulting::<AddressableService>()
        .validation::<AddressableService>()
        .defaulting::<SimpleDeployment>())
}
