//! Runs the webhook of the sample Kinds.

use std::process::ExitCode;

fn main() -> ExitCode {
    samples_controller::program::webhook_server().run()
}
