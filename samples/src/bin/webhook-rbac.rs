//! Prints the RBAC manifests of the webhook of the sample Kinds, for `config/`.

use std::process::ExitCode;

use reknit_samples::program;

fn main() -> ExitCode {
    program::rbac("webhook", program::webhook_server()).print()
}
