//! The programs of the samples, each with its constructors and flags.

use reknit::{prelude::*, sharedmain::NamespaceFlag};

use crate::{addressable_service, simple_deployment, webhook};

/// The program of the controllers.
pub fn controllers() -> Main {
    Main::new("controller")
        .flags::<NamespaceFlag>()
        .controller(addressable_service::controller)
        .controller(simple_deployment::controller)
        .version(env!("CARGO_PKG_VERSION"))
}

/// The program of the webhook.
pub fn webhook_server() -> Main {
    Main::new("webhook").webhook(webhook).version(env!("CARGO_PKG_VERSION"))
}
