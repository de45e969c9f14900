//! The measured controller of AddressableServices, as a process.

use std::process::ExitCode;

use reknit::prelude::Main;

fn main() -> ExitCode {
    Main::new("bench").controller(reknit_benches::controller).run()
}
