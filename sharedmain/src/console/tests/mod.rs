//! Tests of the console, whose process has an API server in memory.

mod browser;
mod pages;
mod process;

use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::ApiResource,
};
use reknit_apiserver::ApiServer;
use reknit_testing::eventually;
use serde_json::Value;
use tower::ServiceExt;

use self::process::Process;
use super::{routes, *};

async fn get(process: &Process, path: &str) -> (StatusCode, axum::http::HeaderMap, String) {
    let request = Request::get(path).header(header::HOST, "localhost:8009").body(axum::body::Body::empty());
    let response = routes::router(process.console.0.clone()).oneshot(request.unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, 8 << 20).await.unwrap();
    (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
}

async fn json(process: &Process, view: &str) -> Value {
    let (status, headers, body) = get(process, &format!("/debug/reknit/v1/{view}")).await;
    assert_eq!(
        (status, headers[header::CONTENT_TYPE].as_bytes()),
        (StatusCode::OK, &b"application/json"[..]),
        "{body}"
    );
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn every_answer_keeps_other_sites_out_and_the_page_loads_nothing_from_elsewhere() {
    let process = Process::start(3).await;
    for path in
        ["/", "/debug/reknit", "/debug/reknit/", "/debug/reknit/console.js", "/debug/reknit/v1/keys", "/none"]
    {
        let (status, headers, body) = get(&process, path).await;
        assert!(status != StatusCode::FORBIDDEN, "{path}");
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        assert_eq!(headers[header::CACHE_CONTROL], "no-store", "{path}");
        let links = body.replace("http://www.w3.org/2000/svg", "");
        assert!(!links.contains("http://") && !links.contains("https://"), "{path}");
    }
    let router = routes::router(process.console.0.clone());
    let rebound = Request::get("/debug/reknit/v1/keys").header(header::HOST, "evil.example.com");
    let response = router.oneshot(rebound.body(axum::body::Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn the_views_show_controllers_keys_informers_buckets_and_the_webhook() {
    let process = Process::start(20).await;
    process.wait_until_settled(20).await;
    let controllers = json(&process, "controllers").await;
    let lamps = &controllers["controllers"][0];
    assert_eq!((&lamps["name"], &lamps["resource"]), (&"lamps.demo.reknit.dev".into(), &lamps["name"]));
    assert!(lamps["passes"]["success"].as_f64().unwrap() >= 1.0, "{lamps}");
    assert!(lamps["failing"].as_f64().unwrap() >= 1.0, "{lamps}");
    assert!(lamps["pass_seconds"]["buckets"].as_array().unwrap().len() > 5);

    let keys = json(&process, "keys").await;
    let retrying =
        keys["keys"].as_array().unwrap().iter().find(|key| key["state"] == "retrying").unwrap().clone();
    assert!(retrying["causes"].as_str().unwrap().contains("connection refused"), "{retrying}");
    let failed = keys["keys"].as_array().unwrap().iter().find(|key| key["state"] == "failed").unwrap();
    assert_eq!(
        (&failed["key"], &failed["causes"]),
        (&"shop/lamp-0017".into(), &"lamp-0017 has no bulb".into())
    );
    let running = keys["keys"].as_array().unwrap().iter().find(|key| key["state"] == "running").unwrap();
    assert!(running["causes"].as_str().unwrap().contains("the object added"), "{running}");

    let passes = json(&process, "passes").await;
    let failed =
        passes["finished"].as_array().unwrap().iter().find(|pass| pass["result"] == "error").unwrap();
    assert!(failed["error"].as_str().unwrap().contains("connection refused"), "{failed}");

    let informers = json(&process, "informers").await;
    let lamps =
        informers["informers"].as_array().unwrap().iter().find(|of| of["name"] == "lamps.demo.reknit.dev");
    assert_eq!((&lamps.unwrap()["state"], &lamps.unwrap()["objects"]), (&"synced".into(), &20.0.into()));

    let leadership = json(&process, "leadership").await;
    let states: Vec<_> =
        leadership["buckets"].as_array().unwrap().iter().map(|of| of["state"].clone()).collect();
    assert_eq!(states, ["led here", "led elsewhere"]);
    assert_eq!(leadership["buckets"][1]["holder"], "lights-7c9f-b_2");
    assert!(!leadership["handovers"].as_array().unwrap().is_empty());

    let webhook = json(&process, "webhook").await;
    assert_eq!(webhook["paths"][0]["answers"]["false"], 3.0, "{webhook}");
}

#[tokio::test]
async fn a_key_has_its_passes_with_requests_what_it_read_and_owns_and_commands_fit_for_a_shell() {
    let process = Process::start(20).await;
    process.wait_until_settled(20).await;
    let key = json(&process, "key?controller=lamps.demo.reknit.dev&key=shop/lamp-0001").await;
    assert_eq!(
        key["commands"]["pause"],
        "kubectl annotate lamps.demo.reknit.dev/lamp-0001 -n shop reknit.dev/paused=true"
    );
    assert_eq!(key["object"]["conditions"][0]["type"], "Ready", "{key}");
    let related = |relation: &str| {
        let related = key["related"].as_array().unwrap().iter();
        related.filter(|of| of["relation"] == relation).cloned().collect::<Vec<_>>()
    };
    assert_eq!(related("tracked")[0]["target"], "shop/switch-0001", "{key}");
    assert_eq!(related("tracked")[0]["exists"], false);
    assert_eq!(related("owned")[0]["target"], "shop/lamp-0001");
    let requests = key["passes"][0]["requests"].as_array().unwrap();
    assert!(key["passes"].as_array().unwrap().iter().any(|pass| pass["requests_total"] != 0), "{requests:?}");

    let absent = json(&process, "key?controller=lamps.demo.reknit.dev&key=shop/$(reboot)").await;
    assert_eq!((&absent["commands"], &absent["object"]), (&Value::Null, &Value::Null));
    for query in ["", "?controller=lamps.demo.reknit.dev", "?controller=none&key=a/b"] {
        let (status, _, why) = get(&process, &format!("/debug/reknit/v1/key{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{why}");
    }
}

#[tokio::test]
async fn objects_that_cannot_be_decoded_are_counted_and_named_with_the_reasons() {
    let server = ApiServer::new();
    let map = serde_json::json!({"metadata": {"name": "bad", "namespace": "shop"}, "data": "no map"});
    server.insert_of(&ApiResource::erase::<ConfigMap>(&()), map);
    let process = Process::start_on(server, 1).await;
    eventually("an object that cannot be decoded", Duration::from_secs(60), async || {
        let informers = json(&process, "informers").await;
        let maps = informers["informers"].as_array().unwrap().iter().find(|of| of["undecodable"] == 1.0);
        let Some(maps) = maps else { return Err(informers.to_string()) };
        let bad = &maps["undecodable_keys"][0];
        assert_eq!(bad["key"], "shop/bad");
        assert!(bad["error"].as_str().unwrap().contains("data"), "{maps}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_pass_that_has_run_for_a_second_shows_what_it_waits_for() {
    let process = Process::start(8).await;
    process.wait_until_settled(8).await;
    eventually("what the pass waits for", Duration::from_secs(60), async || {
        let key = json(&process, "key?controller=lamps.demo.reknit.dev&key=shop/lamp-0007").await;
        let line = key["waits"][0].as_str().unwrap_or_default();
        let is_old = key["running"][0]["seconds"].as_f64().unwrap_or_default() >= 1.0;
        (is_old && line.starts_with("waits for something that keeps no waker")).then_some(()).ok_or(key)
    })
    .await;
    let idle = json(&process, "key?controller=lamps.demo.reknit.dev&key=shop/lamp-0001").await;
    assert_eq!(idle["waits"], serde_json::json!([]));
}

#[tokio::test]
async fn an_invalid_config_map_is_the_reason_why_its_informer_is_unavailable() {
    let server = ApiServer::new();
    let mut wiring =
        ConfigMap { data: Some([("volts".into(), "many".into())].into()), ..ConfigMap::default() };
    (wiring.metadata.namespace, wiring.metadata.name) = (Some("shop".into()), Some("config-wiring".into()));
    server.insert(&wiring);
    let process = Process::start_on(server, 1).await;
    eventually("the informer to be unavailable", Duration::from_secs(60), async || {
        let informers = json(&process, "informers").await;
        let is_of_wiring = |of: &&Value| of["name"].to_string().contains("config-wiring");
        let wiring = informers["informers"].as_array().unwrap().iter().find(is_of_wiring).unwrap().clone();
        let reason = "ConfigMap config-wiring: invalid digit found in string";
        (wiring["state"] == "unavailable" && wiring["reason"] == reason).then_some(()).ok_or(wiring)
    })
    .await;
}

#[tokio::test]
async fn a_key_shows_the_storm_and_the_fights_of_its_passes() {
    let process = Process::start(20).await;
    eventually("a storm", Duration::from_secs(60), async || {
        let key = json(&process, "key?controller=lamps.demo.reknit.dev&key=shop/lamp-0012").await;
        let (storm, held) = (key["passes"][0]["storm"].as_str(), &key["states"][0]);
        let is_held = held["state"] == "held" && held["due_seconds"].is_f64();
        (is_held && storm.is_some_and(|storm| storm.starts_with("reconciled "))).then_some(()).ok_or(key)
    })
    .await;
    let maps: Api<ConfigMap> = Api::namespaced(process.server.client(), "shop");
    eventually("a fight", Duration::from_secs(60), async || {
        let red = Patch::Merge(serde_json::json!({"data": {"color": "red"}}));
        _ = maps.patch("lamp-0001", &PatchParams::default(), &red).await; // not found until it is created
        let key = json(&process, "key?controller=lamps.demo.reknit.dev&key=shop/lamp-0001").await;
        let is_shown = |pass: &Value| {
            pass["fights"][0].as_str().is_some_and(|fight| fight.contains(" set data.color, restored "))
        };
        key["passes"].as_array().unwrap().iter().any(is_shown).then_some(()).ok_or(key)
    })
    .await;
    for view in ["passes", "key?controller=lamps.demo.reknit.dev&key=shop/lamp-0001"] {
        let shown = json(&process, view).await.to_string();
        assert!(!shown.contains("\\\"red\\\""), "a value of the fight is shown: {shown}");
    }
}

#[tokio::test]
async fn a_key_names_the_file_of_its_last_recorded_pass_and_no_path_serves_it() {
    let process = Process::start(3).await;
    let folder = tempfile::tempdir().unwrap();
    process.recordings.set_folder(Some(folder.path()));
    let file = eventually("a recorded pass", Duration::from_secs(60), async || {
        let key = json(&process, "key?controller=lamps.demo.reknit.dev&key=shop/lamp-0003").await;
        key["recorded"].as_str().map(str::to_owned).ok_or(key)
    })
    .await;
    eventually("the file", Duration::from_secs(60), async || folder.path().join(&file).exists()).await;
    assert!(file.ends_with("_lamp-0003.json"), "{file}");
    for path in ["/", "/debug/reknit/", "/debug/reknit/v1/"].map(|folder| format!("{folder}{file}")) {
        assert_eq!(get(&process, &path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn the_console_is_served_on_localhost_while_its_switch_is_on() {
    let process = Process::start(1).await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let switch = Switch::new(watch::Sender::new(false));
    tokio::spawn(process.console.clone().serve_while(switch.clone(), free.port()));
    for is_on in [true, false, true] {
        switch.send_replace(is_on);
        let what = format!("the console to be {}", if is_on { "on" } else { "off" });
        eventually(&what, Duration::from_secs(60), async || {
            tokio::net::TcpStream::connect(free).await.is_ok() == is_on
        })
        .await;
    }
}

#[tokio::test]
async fn no_view_shows_a_value_of_an_object() {
    let process = Process::start(3).await;
    process.wait_until_settled(3).await;
    for view in ["process", "controllers", "keys", "passes", "informers", "leadership", "webhook"] {
        assert!(!json(&process, view).await.to_string().contains(process::SECRET), "{view}");
    }
    let key = json(&process, "key?controller=lamps.demo.reknit.dev&key=shop/lamp-0001").await;
    assert!(!key.to_string().contains(process::SECRET), "{key}");
}
