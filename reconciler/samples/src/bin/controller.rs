//! Runs the sample controllers.

use std::process::ExitCode;

fn main() -> ExitCode {
    samples_controller::program::controllers().run()
}
