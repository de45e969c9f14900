//! Tests of the proxy in `tests/support`.

use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams},
};

use crate::support::{link::Condition, server::Server};

fn config_map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_holds_responses_delays_lines_breaks_connections_and_counts_requests() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("proxy").await;
    let proxy = server.proxy().await;
    let client =
        Client::try_from(proxy.config(&server.config().expect("a configuration"))).expect("a client");
    let through: Api<ConfigMap> = Api::namespaced(client.clone(), &objects.namespace);
    let direct: Api<ConfigMap> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let create = async |api: &Api<ConfigMap>, name: &str| {
        api.create(&PostParams::default(), &config_map(name)).await.expect("the ConfigMap is created");
    };
    let list = through.list(&ListParams::default()).await.expect("a list");
    let version = list.metadata.resource_version.expect("a resourceVersion");

    // A held response belongs to a request that the server has processed.
    let gate = proxy.hold_responses(|request| request.is("create", "configmaps"));
    let creating = tokio::spawn({
        let through = through.clone();
        async move { through.create(&PostParams::default(), &config_map("held")).await }
    });
    gate.wait_for_arrivals(1).await;
    assert!(direct.get("held").await.is_ok() && !creating.is_finished());
    gate.open();
    creating.await.expect("the task does not panic").expect("the response");

    // Each line is delayed from its own arrival: two lines at once arrive together.
    let delay = Duration::from_secs(4);
    proxy.delay_lines("configmaps", delay);
    let mut lines = std::pin::pin!(through.watch(&WatchParams::default(), &version).await.expect("a watch"));
    assert!(matches!(lines.next().await, Some(Ok(WatchEvent::Added(_)))));
    let began = Instant::now();
    create(&direct, "one").await;
    create(&direct, "two").await;
    for _ in 0..2 {
        assert!(matches!(lines.next().await, Some(Ok(WatchEvent::Added(_)))));
    }
    let took = began.elapsed();
    assert!(took >= delay && took < delay * 2, "{took:?}");

    // A cut breaks a watch, and the next watch can end with 410.
    proxy.cut_watches();
    assert!(!matches!(lines.next().await, Some(Ok(_))));
    proxy.expire_watches("configmaps");
    let mut expired =
        std::pin::pin!(through.watch(&WatchParams::default(), &version).await.expect("a watch"));
    assert!(matches!(expired.next().await, Some(Ok(WatchEvent::Error(status))) if status.code == 410));

    // Connections are broken, and accepted again.
    proxy.set_link(Condition::Broken);
    assert!(through.get("one").await.is_err());
    proxy.set_link(Condition::Up);
    assert!(through.get("one").await.is_ok());
    assert_eq!(proxy.count_requests(|request| request.is("create", "configmaps")), 1);
    assert_eq!(proxy.count_requests(|request| request.is("watch", "configmaps")), 2);
    assert_eq!(
        proxy.count_requests(|request| request.is("get", "configmaps")),
        1,
        "a refused request was counted"
    );
}
