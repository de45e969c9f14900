//! The program of the samples, with its constructors and flags.

use reknit::{prelude::*, sharedmain::NamespaceFlag};

use crate::{addressable_service, simple_deployment, webhook};

/// The program: the controllers and the webhook.
pub fn program() -> Main {
    Main::new("controller")
        .flags::<NamespaceFlag>()
        .controller(addressable_service::controller)
        .controller(simple_deployment::controller)
        .webhook(webhook)
        .version(env!("CARGO_PKG_VERSION"))
        .plannable()
}
