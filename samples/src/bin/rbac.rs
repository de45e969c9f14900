//! Prints the RBAC manifests of the sample controllers, for `config/`.

use std::process::ExitCode;

use reknit_samples::program;

fn main() -> ExitCode {
    program::rbac("controller", program::controllers()).print()
}
