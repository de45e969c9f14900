//! The `storage-migration` command.

use std::{
    error::Error,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use reknit::{testing::ControlPlane, webhook::migrate_storage};
use reknit_samples::{AddressableService, AddressableServiceSpec};
use serde_json::json;

const DEFINITION: &str = "addressableservices.samples.knative.dev";

#[tokio::test(flavor = "multi_thread")]
async fn the_command_reports_the_number_of_objects_and_failures() -> Result<(), Box<dyn Error>> {
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
        command.args(arguments).env("KUBECONFIG", plane.kubeconfig());
        command.output()
    };
    let migrated = run(&[DEFINITION])?;
    assert_eq!(
        String::from_utf8(migrated.stdout)?,
        format!("{DEFINITION}: 2 objects are stored in its storage version\n")
    );
    let failed = run(&[DEFINITION, "nothing.example.com"])?;
    let stderr = String::from_utf8(failed.stderr)?;
    assert_eq!(failed.status.code(), Some(1));
    assert!(
        stderr.contains("failed to read or update CustomResourceDefinition nothing.example.com: "),
        "{stderr}"
    );
    assert_eq!(run(&[])?.status.code(), Some(2));
    Ok(())
}

#[test]
fn the_command_gives_up_after_the_request_budget_of_a_process() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let kubeconfig = concat!(env!("CARGO_TARGET_TMPDIR"), "/refusing.kubeconfig");
    let server = format!("http://{}", listener.local_addr()?);
    let config = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
    });
    std::fs::write(kubeconfig, config.to_string())?;
    let requests = Arc::new(AtomicUsize::new(0));
    let requests_of_server = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            while reader.by_ref().lines().map_while(Result::ok).any(|line| line.is_empty()) {
                requests_of_server.fetch_add(1, Ordering::Relaxed);
                let refusal =
                    "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}";
                if reader.get_mut().write_all(refusal.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_storage-migration"));
    let output = command.arg(DEFINITION).env("KUBECONFIG", kubeconfig).output()?;
    assert_eq!(output.status.code(), Some(1));
    assert!((2..=7).contains(&requests.load(Ordering::Relaxed)), "{requests:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_continues_after_its_list_expired() -> Result<(), Box<dyn Error>> {
    let plane = ControlPlane::builder().arg("--watch-cache=false").start().await?;
    plane.install::<AddressableService>().await?;
    let client = plane.client()?;
    let services: Api<AddressableService> = Api::namespaced(client.clone(), "default");
    // More than two pages of the migration's list.
    let created = stream::iter(0..1_200).map(async |number| {
        let spec = AddressableServiceSpec { service_name: "web".into() };
        let service = AddressableService::new(&format!("service-{number}"), spec);
        services.create(&PostParams::default(), &service).await.map(drop)
    });
    created.buffer_unordered(20).collect::<Vec<_>>().await.into_iter().collect::<Result<(), _>>()?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let compaction = async {
        for number in 0_u32.. {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "count"}, "data": {"n": number.to_string()}});
            maps.patch("count", &PatchParams::apply("test"), &Patch::Apply(map)).await?;
            plane.compact().await?;
        }
        Ok::<_, Box<dyn Error>>(0)
    };
    let count = tokio::select! {
        count = migrate_storage(&client, DEFINITION) => count.expect("the migration"),
        failed = compaction => failed?,
    };
    assert_eq!(count, 1_200);
    Ok(())
}
