//! Runs the sample controllers.

use std::process::ExitCode;

fn main() -> ExitCode {
    reknit_samples::program::controllers().run()
}
