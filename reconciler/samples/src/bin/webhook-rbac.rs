//! Prints the RBAC manifests of the webhook of the sample Kinds, for `config/`.

use std::process::ExitCode;

use samples_controller::program;

fn main() -> ExitCode {
    program::rbac("webhook", program::webhook_server()).print()
}
