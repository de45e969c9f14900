//! docs/tutorial.md, followed step by step in a fresh folder and against a real API server.

mod blocks;
mod reader;

use std::{error::Error, path::Path, time::Duration};

use kube::{Api, api::PostParams, core::ApiResource, core::DynamicObject, core::GroupVersionKind};
use reknit::testing::{ControlPlane, eventually};
use serde_json::json;

use self::{
    blocks::{Block, Run, blocks},
    reader::Reader,
};
use crate::support::process::build_all;

type Done = Result<(), Box<dyn Error>>;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[tokio::test(flavor = "multi_thread")]
async fn every_file_and_command_of_the_tutorial_works() -> Done {
    build_all();
    let plane = ControlPlane::start().await?;
    plane.nodes(1).await?;
    let mut reader = Reader::new(plane.kubeconfig())?;
    let text = std::fs::read_to_string(Path::new(ROOT).join("docs/tutorial.md"))?;
    let (mut done, mut skipped) = (0, 0);
    for block in blocks(&text)? {
        done += 1;
        match block {
            Block::File { path, text } => reader.write(&path, &text)?,
            Block::Diff { path, text } => reader.change(&path, &text)?,
            Block::Console { run: Run::No, .. } => skipped += 1,
            Block::Console { run: Run::Background, steps } => reader.start(&steps)?,
            Block::Console { run: Run::Stop, .. } => reader.stop()?,
            Block::Console { run: Run::Yes, steps } => {
                for step in steps {
                    if step.command.starts_with("kubectl delete -f example.yaml") {
                        the_deployed_controller_works(&plane, &mut reader).await?;
                    }
                    reader.run(&step)?;
                }
            }
        }
    }
    println!("{done} blocks, of which {skipped} are said not to be run");
    assert_eq!(skipped, 2, "the clone and the image");
    Ok(())
}

/// Runs the program as the deployment does: as the service account of config/, with leader election.
async fn the_deployed_controller_works(plane: &ControlPlane, reader: &mut Reader) -> Done {
    let kubeconfig = plane.kubeconfig_as("greeting-controller", "controller").await?;
    reader.start_deployed(&kubeconfig, "greeting-controller")?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Greeting"));
    let greetings: Api<DynamicObject> = Api::namespaced_with(plane.client()?, "default", &kind);
    let all = DynamicObject::new("all", &kind).data(json!({"spec": {"to": "all"}}));
    greetings.create(&PostParams::default(), &all).await?;
    let ready = async || {
        let all = greetings.get("all").await.map_err(|error| error.to_string())?;
        match all.data["status"]["conditions"][0]["status"].as_str() {
            Some("True") => Ok(()),
            _ => Err(format!("its status is {}", all.data["status"])),
        }
    };
    eventually("the greeting that the deployed controller makes ready", Duration::from_secs(60), ready).await;
    reader.stop()
}
