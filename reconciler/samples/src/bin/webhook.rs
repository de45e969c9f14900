//! Runs the webhook of the sample Kinds.

use std::process::ExitCode;

use reknit::prelude::*;

fn main() -> ExitCode {
    Main::new("webhook").webhook(samples_controller::webhook).version(env!("CARGO_PKG_VERSION")).run()
}
