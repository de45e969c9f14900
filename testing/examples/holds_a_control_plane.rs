//! Starts a control plane, says where, and waits to be killed: for the test that kills it.

use std::{future::pending, process::ExitCode};

use reknit_testing::ControlPlane;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match ControlPlane::start().await {
        Ok(plane) => {
            println!("{}", plane.kubeconfig().display());
            pending().await
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
