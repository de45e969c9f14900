//! Prints the RBAC manifests. `cargo reknit rbac --write` writes them to `config/200-rbac.yaml`.

use std::process::ExitCode;

fn main() -> ExitCode {
    reknit_samples::manifests::rbac().print()
}
