//! Runs the sample controllers and their webhook.

use std::process::ExitCode;

fn main() -> ExitCode {
    reknit_samples::program().run()
}
