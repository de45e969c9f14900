//! Runs the sample controllers.

use std::process::ExitCode;

use reknit::{prelude::*, sharedmain::NamespaceFlag};
use samples_controller::addressable_service;

fn main() -> ExitCode {
    Main::new("controller")
        .flags::<NamespaceFlag>()
        .controller(addressable_service::controller)
        .version(env!("CARGO_PKG_VERSION"))
        .run()
}
