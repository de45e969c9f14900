//! The program as its Deployment runs it, against a real API server: `cargo test --test integration`.

use std::time::Duration;

use kube::{Api, api::ListParams};
use reknit::{
    prelude::*,
    testing::{ControlPlane, Program, eventually},
};

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
    eventually("the example is ready", TIMEOUT, async || {
        let listed = objects.list(&ListParams::default()).await?;
        let statuses = listed.items.into_iter().filter_map(|object| object.status);
        let mut is_ready = statuses.map(|mut status| {
            let conditions = WarmGreeting::CONDITIONS.manage(&mut status);
            conditions.is_happy()
        });
        if is_ready.any(|is_ready| is_ready) {
            Ok(())
        } else {
            Err(Error::from(program.last_lines()))
        }
    })
    .await;
    program.stop().await;
    Ok(())
}
