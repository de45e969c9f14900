//! The program as its Deployment runs it, against a real API server: `cargo test --test integration`.

use reknit::{
    prelude::*,
    testing::{ControlPlane, Program},
};

#[tokio::test]
async fn the_program_gets_ready_as_its_service_account() -> Result<()> {
    let plane = ControlPlane::start().await?;
    plane.apply_path("config/100-namespace.yaml").await?;
    plane.apply_path("config/200-rbac.yaml").await?;
    for definition in hello_world::definitions()? {
        plane.install_crd(definition).await?;
    }
    let (namespace, account) = ("hello-world", "controller");
    let kubeconfig = plane.kubeconfig_as(namespace, account).await?;
    // The API server cannot reach Services here, so the program runs without its webhook.
    let program = Program::new(env!("CARGO_BIN_EXE_hello-world"), &kubeconfig)
        .with_leader_election(namespace, "controller-1")
        .env("ENABLE_WEBHOOKS", "false")
        .spawn();
    program.wait_until_ready().await;
    // Create an object here, and wait by `reknit::testing::eventually` for what the controller does with it. No pods run:
    // `plane.nodes(1)` above simulates a node.
    program.stop().await;
    Ok(())
}
