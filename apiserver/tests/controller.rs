//! A controller of kube-runtime that runs against the API server in memory. docs/how-to/api-server-in-memory.md shows it.
#![cfg(test)]

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt,
        controller::{Action, Controller},
        wait::{await_condition, conditions::is_deleted},
        watcher,
    },
};
use reknit_apiserver::ApiServer;
use serde_json::json;
use tokio::time::timeout;

/// Copies the data of a ConfigMap into a Secret that it owns.
async fn reconcile(map: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, kube::Error> {
    let secrets: Api<Secret> = Api::namespaced(Client::clone(&client), &map.namespace().unwrap_or_default());
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"ownerReferences": [map.controller_owner_ref(&())]},
        "stringData": map.data,
    });
    secrets.patch(&map.name_any(), &PatchParams::apply("copier"), &Patch::Apply(secret)).await?;
    Ok(Action::await_change())
}

async fn run(client: Client) {
    let maps = Controller::new(Api::<ConfigMap>::all(client.clone()), watcher::Config::default());
    let secrets = Api::<Secret>::all(client.clone());
    let retry = |_: Arc<ConfigMap>, _: &kube::Error, _: Arc<Client>| Action::requeue(Duration::from_secs(1));
    let controller = maps.owns(secrets, watcher::Config::default()).run(reconcile, retry, Arc::new(client));
    controller.for_each(|_| std::future::ready(())).await;
}

fn prices(coffee: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "prices"}, "data": {"coffee": coffee}})).unwrap()
}

#[tokio::test]
async fn a_config_map_is_copied_and_its_copy_goes_with_it() {
    let server = ApiServer::new().with_garbage_collector();
    server.fail_times("patch", "secrets", 500, 1); // The first attempt fails.
    let controller = tokio::spawn(run(server.client()));

    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "shop");
    maps.create(&PostParams::default(), &prices("3")).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(server.client(), "shop");
    let has_copy = await_condition(secrets.clone(), "prices", |secret: Option<&Secret>| secret.is_some());
    let copy = timeout(Duration::from_secs(60), has_copy).await.unwrap().unwrap().unwrap();
    assert_eq!(copy.string_data.unwrap()["coffee"], "3");

    maps.delete("prices", &DeleteParams::default()).await.unwrap();
    let uid = copy.metadata.uid.unwrap();
    let is_gone = await_condition(secrets, "prices", is_deleted(&uid));
    timeout(Duration::from_secs(60), is_gone).await.unwrap().unwrap();
    controller.abort();
}

#[tokio::test]
async fn a_watcher_lists_again_if_its_version_has_expired() {
    let server = ApiServer::new();
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "shop");
    let mut events = watcher(maps.clone(), watcher::Config::default()).default_backoff().boxed();
    maps.create(&PostParams::default(), &prices("3")).await.unwrap();
    let mut seen = async |is_expected: &dyn Fn(&watcher::Event<ConfigMap>) -> bool| {
        let expected = async {
            // An expired version is an error of the stream, which goes on.
            while !matches!(events.next().await, Some(Ok(event)) if is_expected(&event)) {}
        };
        timeout(Duration::from_secs(60), expected).await.unwrap();
    };
    seen(&|event| matches!(event, watcher::Event::InitDone)).await;

    // The watch breaks, and the change is compacted away before the watcher returns.
    server.remove::<ConfigMap>(Some("shop"), "prices");
    server.compact();
    server.end_watches();
    seen(&|event| matches!(event, watcher::Event::InitDone)).await;

    maps.create(&PostParams::default(), &prices("4")).await.unwrap();
    seen(&|event| matches!(event, watcher::Event::Apply(map) if map.name_any() == "prices")).await;
}
