//! The proxy that other tests use.

use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams},
};

use crate::support::server::Server;

fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_holds_delays_cuts_and_counts() {
    let server = Server::shared().await;
    let objects = server.objects("proxy").await;
    let proxy = server.proxy().await;
    let client =
        Client::try_from(proxy.config(&server.config().expect("a configuration"))).expect("a client");
    let through: Api<ConfigMap> = Api::namespaced(client.clone(), &objects.namespace);
    let direct: Api<ConfigMap> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let created = async |api: &Api<ConfigMap>, name: &str| {
        api.create(&PostParams::default(), &map(name)).await.expect("it is created");
    };
    let version = through.list(&ListParams::default()).await.expect("a list").metadata.resource_version;
    let version = version.expect("a version");

    // A held response belongs to a request that the server has processed.
    let gate = proxy.hold_answers(|request| request.is("create", "configmaps"));
    let creating = tokio::spawn({
        let through = through.clone();
        async move { through.create(&PostParams::default(), &map("held")).await }
    });
    gate.arrived(1).await;
    assert!(direct.get("held").await.is_ok() && !creating.is_finished());
    gate.open();
    creating.await.expect("a task").expect("the answer");

    // Each line is delayed, and two lines at once are not delayed twice.
    let late = Duration::from_secs(4);
    proxy.delay_lines("configmaps", late);
    let mut lines = std::pin::pin!(through.watch(&WatchParams::default(), &version).await.expect("a watch"));
    assert!(matches!(lines.next().await, Some(Ok(WatchEvent::Added(_)))));
    let began = Instant::now();
    created(&direct, "one").await;
    created(&direct, "two").await;
    for _ in 0..2 {
        assert!(matches!(lines.next().await, Some(Ok(WatchEvent::Added(_)))));
    }
    let took = began.elapsed();
    assert!(took >= late && took < late * 2, "{took:?}");

    // A cut ends a watch, and the next watch can be answered with 410.
    proxy.cut_watches();
    assert!(!matches!(lines.next().await, Some(Ok(_))));
    proxy.expire("configmaps");
    let mut late = std::pin::pin!(through.watch(&WatchParams::default(), &version).await.expect("a watch"));
    assert!(matches!(late.next().await, Some(Ok(WatchEvent::Error(status))) if status.code == 410));

    // Connections are refused, and accepted again.
    proxy.refuse().await;
    assert!(through.get("one").await.is_err());
    proxy.accept().await;
    assert!(through.get("one").await.is_ok());
    assert_eq!(proxy.count(|request| request.is("create", "configmaps")), 1);
    assert_eq!(proxy.count(|request| request.is("watch", "configmaps")), 2);
    assert_eq!(proxy.count(|request| request.is("get", "configmaps")), 1, "a refused one counts");
}
