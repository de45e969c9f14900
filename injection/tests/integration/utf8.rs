//! Objects with bytes that are not UTF-8.

use http::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use reknit_injection::{Context, Informer, select};
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{TIME_LIMIT, map, reported::ReportedChanges};

/// Writes bytes that are not UTF-8 into the `managedFields` of a ConfigMap: the API server accepts and returns them.
async fn spoil(client: &Client, maps: &Api<ConfigMap>, namespace: &str) {
    let mut spoilt = map("spoilt", &[]);
    spoilt.data = Some([("field".into(), "1".into())].into());
    let created = maps.create(&PostParams::default(), &spoilt).await.unwrap();
    let body = serde_json::to_string(&created).unwrap().into_bytes();
    let at = body.windows(7).position(|bytes| bytes == b"f:field").unwrap();
    let body = [&body[..at + 2], b"\xff", &body[at + 3..]].concat();
    let url = format!("/api/v1/namespaces/{namespace}/configmaps/spoilt");
    let request =
        Request::put(url).header("content-type", "application/json").body(Body::from(body)).unwrap();
    let response = client.send(request).await.unwrap();
    assert!(response.status().is_success(), "{}", response.status());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_with_bytes_that_are_not_utf8_hides_no_other_object_and_can_be_written() {
    let plane = ControlPlane::shared().await.unwrap();
    let (client, namespace) = (plane.client().unwrap(), plane.namespace("utf8").await.unwrap());
    let start = || {
        let cx = Context::new("test", client.clone());
        let informer: Informer<ConfigMap> = cx.informer(select().namespace(&namespace));
        cx.informers().start();
        (cx, informer)
    };
    let (_watching, watched) = start();
    let changes = ReportedChanges::by(&watched);
    watched.synced().await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    spoil(&client, &maps, &namespace).await;
    changes.until("~spoilt").await;
    maps.create(&PostParams::default(), &map("later", &[])).await.unwrap();
    changes.until("+later").await;

    let (cx, listed) = start();
    eventually("the list", TIME_LIMIT, async || {
        listed.state().is_synced().then_some(()).ok_or(format!("{:?}", listed.state()))
    })
    .await;
    let maps: Api<ConfigMap> = Api::namespaced(cx.client().clone(), &namespace);
    let patch = Patch::Merge(json!({"data": {"field": "2"}}));
    maps.patch("spoilt", &PatchParams::default(), &patch).await.unwrap();
    let names = maps.list(&ListParams::default()).await.unwrap().items.len();
    assert_eq!(names, listed.len());
}
