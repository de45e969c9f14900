//! Runs the sample controllers.

use std::process::ExitCode;

use reknit::prelude::*;
use samples_controller::{Flags, addressable_service};

fn main() -> ExitCode {
    Main::new("controller")
        .flags::<Flags>()
        .controller(addressable_service::controller)
        .version(env!("CARGO_PKG_VERSION"))
        .run()
}
