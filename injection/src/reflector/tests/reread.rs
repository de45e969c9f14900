//! States that a list brings with other content than before, because the API server reads them in another way.

use kube::{Api, api::PostParams};

use super::*;

/// The ConfigMap `a` at this version, with one field of data.
fn read_as(version: &str, color: &str) -> Value {
    let mut map = map("a", version);
    map["data"] = json!({"color": color});
    map
}

fn color(maps: &Informer<ConfigMap>) -> Option<String> {
    maps.get(&Key::new("n", "a"))?.data.as_ref()?.get("color").cloned()
}

/// Ends the watch with 410, and answers the list that follows.
async fn list_again(watch: Stream, server: &mut Server, version: &str, items: &[Value]) -> Stream {
    watch.event("ERROR", &expired());
    server.list().await.items(version, items);
    server.watch(version).await.stream()
}

#[tokio::test(start_paused = true)]
async fn a_list_replaces_an_object_of_the_same_version_whose_content_differs() {
    let (maps, calls, mut server, watch) = start_synced("10", &[read_as("5", "red"), map("b", "6")]).await;
    let watch = list_again(watch, &mut server, "12", &[read_as("5", "blue"), map("b", "6")]).await;
    assert_eq!((calls.take(), color(&maps)), (vec!["~a@5".into()], Some("blue".into())));
    let mut reordered = read_as("5", "blue");
    reordered["data"] = json!({"color": "blue", "size": "1"});
    let watch = list_again(watch, &mut server, "14", &[reordered, map("b", "6")]).await;
    assert_eq!(calls.take(), ["~a@5"]);
    let _watch = list_again(watch, &mut server, "16", &[map("b", "6")]).await;
    assert_eq!(calls.take(), ["-a@5"]);
}

/// The response to a write may have its fields in another order.
#[tokio::test(start_paused = true)]
async fn a_list_after_an_own_write_replaces_what_the_write_has_cached_if_the_values_differ() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let maps: Informer<ConfigMap> = cx.get();
    let calls = Calls::by(&maps);
    cx.informers().start();
    let watch = server.sync("10", &[]).await;
    maps.synced().await;
    let api: Api<ConfigMap> = Api::namespaced(cx.client(), "n");
    let (created, response) = (read_as("11", "red"), async {
        let text = r#"{"kind":"ConfigMap","data":{"color":"red"},"metadata":{"labels":{"x":"1"},"uid":"uid-a",
            "resourceVersion":"11","namespace":"n","name":"a","annotations":{"y":"2"}},"apiVersion":"v1"}"#;
        server.next().await.respond(201, text);
    });
    let map: ConfigMap = serde_json::from_value(created).unwrap();
    let params = PostParams::default();
    let (written, ()) = tokio::join!(api.create(&params, &map), response);
    written.unwrap();
    assert_eq!(calls.take(), ["+a@11"]);

    let mut listed = read_as("11", "red");
    listed["metadata"]["annotations"] = json!({"y": "2"});
    listed["metadata"]["labels"] = json!({"x": "1"});
    let watch = list_again(watch, &mut server, "12", std::slice::from_ref(&listed)).await;
    assert_eq!(calls.take(), [""; 0], "the same values");
    listed["data"]["color"] = json!("blue");
    let _watch = list_again(watch, &mut server, "14", &[listed]).await;
    assert_eq!((calls.take(), color(&maps)), (vec!["~a@11".into()], Some("blue".into())));
}
