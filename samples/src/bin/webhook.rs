//! Runs the webhook of the sample Kinds.

use std::process::ExitCode;

fn main() -> ExitCode {
    reknit_samples::program::webhook_server().run()
}
