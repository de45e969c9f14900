//! Objects whose state is read back after a write.

use super::*;

/// Responds to a write, and then to the list that reads the object back. Returns the path and the field selector of the
/// list.
async fn respond_and_list(server: &mut Server, response: Value, version: &str, items: &[Value]) -> String {
    server.next().await.respond(200, response);
    let request = server.next().await;
    let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": version},
        "items": items});
    assert_eq!(request.method, http::Method::GET);
    let fields = request.query.get("fieldSelector").cloned().unwrap_or_default();
    let path_and_selector = format!("{} {fields}", request.path);
    request.respond(200, list);
    path_and_selector
}

#[tokio::test]
async fn an_object_whose_state_is_not_in_the_response_is_read_back() {
    let mut process = Process::start().await;
    let client = process.client.clone();
    let scale =
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "a", "namespace": "n"}});
    let request = http::Request::put("/api/v1/namespaces/n/configmaps/a/scale").body(Vec::new()).unwrap();
    let items = [map("a", "11")];
    let (scaled, listed) = tokio::join!(
        client.request::<Value>(request),
        respond_and_list(&mut process.server, scale.clone(), "12", &items)
    );
    assert_eq!(scaled.unwrap(), scale, "the caller gets the response");
    assert_eq!(listed, "/api/v1/namespaces/n/configmaps metadata.name=a");
    assert_eq!(process.cached_version("a").as_deref(), Some("11"));

    let request = http::Request::put("/api/v1/namespaces/n/configmaps/a,b=c/scale").body(Vec::new()).unwrap();
    let (scaled, listed) = tokio::join!(
        client.request::<Value>(request),
        respond_and_list(&mut process.server, scale.clone(), "12", &[])
    );
    assert_eq!(scaled.unwrap(), scale);
    assert_eq!(
        listed, r"/api/v1/namespaces/n/configmaps metadata.name=a\,b\=c",
        "as the name of a Role may be"
    );

    let deleted = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [map("a", "11"), map("b", "3")]});
    let (delete, list, api) = (DeleteParams::default(), ListParams::default(), process.api.clone());
    let items = [map("other", "15")];
    let (gone, _) = tokio::join!(
        api.delete_collection(&delete, &list),
        respond_and_list(&mut process.server, deleted, "20", &items)
    );
    gone.unwrap();
    assert_eq!(
        (process.cached_version("a"), process.cached_version("other")),
        (None, None),
        "of the listed objects, only those that the write deleted are applied"
    );
    assert_eq!(process.take_reported(), ["5>11", "11"]);
}

#[tokio::test]
async fn an_object_that_no_page_of_a_read_back_contains_is_removed() {
    let mut process = Process::start().await;
    for name in ["b", "c"] {
        process.maps.insert(&config_map(map(name, "6"))).unwrap();
    }
    let all = ["a", "b", "c"].map(|name| map(name, "11"));
    let deleted = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": all});
    let (delete, list, api) = (DeleteParams::default(), ListParams::default(), process.api.clone());
    let server = &mut process.server;
    let (gone, ()) = tokio::join!(api.delete_collection(&delete, &list), async {
        server.next().await.respond(200, deleted);
        server.list().await.page("20", "more", &[map("a", "12")]);
        let last = server.list().await;
        assert_eq!(last.query.get("continue").map(String::as_str), Some("more"));
        last.items("20", &[map("c", "13")]);
    });
    gone.unwrap();
    let cached = ["a", "b", "c"].map(|name| process.maps.get(&Key::new("n", name)));
    let versions = cached.map(|map| map.and_then(|map| map.metadata.resource_version.clone()));
    assert_eq!(versions, [Some("12".into()), None, Some("13".into())]);
}

#[tokio::test]
async fn the_deletion_of_a_collection_is_read_back_however_deep_an_object_is_nested() {
    let mut process = Process::start().await;
    let mut deep = map("deep", "3");
    deep["extra"] = (0..200).fold(json!(1), |inner, _| json!({ "inner": inner }));
    let deleted =
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [deep, map("a", "5")]});
    let (delete, list, api) = (DeleteParams::default(), ListParams::default(), process.api.clone());
    let (gone, _) = tokio::join!(
        api.delete_collection(&delete, &list),
        respond_and_list(&mut process.server, deleted, "20", &[])
    );
    assert!(matches!(gone, Err(kube::Error::SerdeError(_))), "the client cannot decode the answer");
    assert_eq!(process.cached_version("a"), None);
}

#[tokio::test]
async fn a_failed_read_back_leaves_the_cache_to_the_watch() {
    let mut process = Process::start().await;
    let (delete, list, api) = (DeleteParams::default(), ListParams::default(), process.api.clone());
    let deleted =
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [map("a", "5")]});
    let server = &mut process.server;
    let (gone, ()) = tokio::join!(api.delete_collection(&delete, &list), async {
        server.next().await.respond(200, deleted);
        server.next().await.fail(403, "no");
    });
    gone.unwrap();
    assert_eq!((process.cached_version("a").as_deref(), process.take_reported().len()), (Some("5"), 0));
}
