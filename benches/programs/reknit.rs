//! The measured controller of AddressableServices, as a process.

use std::process::ExitCode;

use reknit::sharedmain;

fn main() -> ExitCode {
    sharedmain::main("bench", &[reknit_benches::controller])
}
