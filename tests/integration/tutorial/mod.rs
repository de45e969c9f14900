//! docs/tutorial.md, followed step by step in a fresh folder and against a real API server.

mod blocks;
mod reader;

use std::{error::Error, path::Path, time::Duration};

use kube::{Api, api::PostParams, core::ApiResource, core::DynamicObject, core::GroupVersionKind};
use reknit::testing::{ControlPlane, eventually};
use serde_json::json;

use self::{
    blocks::{Block, Run, parse_blocks},
    reader::Reader,
};
use crate::support::process::prebuild_executables;

type TestResult = Result<(), Box<dyn Error>>;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[tokio::test(flavor = "multi_thread")]
async fn every_file_and_command_of_the_tutorial_works() -> TestResult {
    prebuild_executables();
    let plane = ControlPlane::start().await?;
    plane.nodes(1).await?;
    let mut reader = Reader::new(plane.kubeconfig())?;
    let text = std::fs::read_to_string(Path::new(ROOT).join("docs/tutorial.md"))?;
    let (mut total, mut skipped, mut deployed) = (0, 0, false);
    for block in parse_blocks(&text)? {
        total += 1;
        match block {
            Block::File { path, text } => reader.write(&path, &text)?,
            Block::Diff { path, text } => reader.change(&path, &text)?,
            Block::Console { run: Run::No, .. } => skipped += 1,
            Block::Console { run: Run::Background, steps } => reader.start(&steps)?,
            Block::Console { run: Run::Stop, .. } => reader.stop()?,
            Block::Console { run: Run::Yes, steps } => {
                for step in steps {
                    reader.run(&step)?;
                    // Only the first deployment is run: the API server could not call the webhook of the second one,
                    // because nothing here serves the addresses of Services.
                    if step.command.contains("rollout status") && !std::mem::replace(&mut deployed, true) {
                        check_deployed_controller(&plane, &mut reader).await?;
                    }
                }
            }
        }
    }
    println!("{total} blocks, {skipped} of them marked run=no");
    assert_eq!(skipped, 2, "blocks marked run=no: the clone and the image");
    Ok(())
}

/// Runs the program with the service account in config/ and with leader election, as its Deployment would, and asserts
/// that the program makes a Greeting ready.
async fn check_deployed_controller(plane: &ControlPlane, reader: &mut Reader) -> TestResult {
    let kubeconfig = plane.kubeconfig_as("greetings", "controller").await?;
    reader.start_as_service_account(&kubeconfig, "greetings")?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Greeting"));
    let greetings: Api<DynamicObject> = Api::namespaced_with(plane.client()?, "default", &kind);
    let greeting = DynamicObject::new("all", &kind).data(json!({"spec": {"to": "all"}}));
    greetings.create(&PostParams::default(), &greeting).await?;
    let is_ready = async || {
        let greeting = greetings.get("all").await.map_err(|error| error.to_string())?;
        match greeting.data["status"]["conditions"][0]["status"].as_str() {
            Some("True") => Ok(()),
            _ => Err(format!("its status is {}", greeting.data["status"])),
        }
    };
    eventually("the Greeting is ready", Duration::from_secs(60), is_ready).await;
    reader.stop()
}
