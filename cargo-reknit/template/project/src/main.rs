//! Runs the controllers.

use std::process::ExitCode;

fn main() -> ExitCode {
    hello_world::program().run()
}
