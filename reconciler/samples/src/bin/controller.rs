//! Runs the sample controllers.

use std::process::ExitCode;

use reknit::{prelude::*, sharedmain::NamespaceFlag};
use samples_controller::{addressable_service, simple_deployment};

fn main() -> ExitCode {
    Main::new("controller")
        .flags::<NamespaceFlag>()
        .controller(addressable_service::controller)
        .controller(simple_deployment::controller)
        .version(env!("CARGO_PKG_VERSION"))
        .run()
}
