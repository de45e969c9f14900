//! The program as its Deployment runs it, against a real API server: `cargo test --test integration`.

use std::time::Duration;

use kube::{Api, api::ListParams};
use reknit::{
    prelude::*,
    testing::{ControlPlane, Program, eventually},
};
use serde_json::json;

use hello_world::warm_greeting::WarmGreeting;

/// The limit of each wait. It is long, because the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_example_gets_ready_with_the_rights_of_the_service_account() -> Result<()> {
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

    let example = "config/example/warm_greeting.yaml";
    plane.apply_path(example).await?;
    let objects: Api<WarmGreeting> = Api::all(plane.client()?);
    // No pods run here. If the example waits for some, call `plane.nodes(1)` above, which simulates a node.
    eventually("the example is ready", TIMEOUT, async || {
        let listed = objects.list(&ListParams::default()).await?;
        let mut statuses: Vec<_> = listed
            .items
            .into_iter()
            .map(|object| object.status.unwrap_or_default())
            .collect();
        let mut is_ready = statuses
            .iter_mut()
            .map(|status| WarmGreeting::CONDITIONS.manage(status).is_happy());
        if is_ready.any(|is_ready| is_ready) {
            Ok(())
        } else {
            Err(Error::from(format!(
                "{}\n{}",
                json!(statuses),
                program.last_lines()
            )))
        }
    })
    .await;
    program.stop().await;
    Ok(())
}
