//! The command that has objects stored anew.

use std::{error::Error, process::Command};

use kube::{Api, api::PostParams};
use reknit::testing::ControlPlane;
use samples_apis::{AddressableService, AddressableServiceSpec};

const DEFINITION: &str = "addressableservices.samples.knative.dev";

#[tokio::test(flavor = "multi_thread")]
async fn the_command_says_how_many_objects_it_wrote_and_what_it_could_not() -> Result<(), Box<dyn Error>> {
    let plane = ControlPlane::shared().await?;
    plane.install::<AddressableService>().await?;
    let services: Api<AddressableService> =
        Api::namespaced(plane.client()?, &plane.namespace("migration").await?);
    for name in ["a", "b"] {
        let spec = AddressableServiceSpec { service_name: "web".into() };
        services.create(&PostParams::default(), &AddressableService::new(name, spec)).await?;
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_storage-migration"));
        command.args(arguments).env("KUBECONFIG", plane.kubeconfig()).output()
    };
    let done = run(&[DEFINITION])?;
    assert_eq!(
        String::from_utf8(done.stdout)?,
        format!("{DEFINITION}: 2 objects are stored in its storage version\n")
    );
    let failed = run(&[DEFINITION, "nothing.example.com"])?;
    let said = String::from_utf8(failed.stderr)?;
    assert_eq!(failed.status.code(), Some(1));
    assert!(said.contains("the CustomResourceDefinition nothing.example.com: "), "{said}");
    assert_eq!(run(&[])?.status.code(), Some(2));
    Ok(())
}
