//! Prints the RBAC manifests of the controllers for the flags of their program, for `config/namespaced/`.

use std::process::ExitCode;

fn main() -> ExitCode {
    reknit_samples::manifests::controller_rbac().print()
}
