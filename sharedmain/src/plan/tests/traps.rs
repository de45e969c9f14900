use std::sync::atomic::{AtomicUsize, Ordering};

use kube::api::Preconditions;
use reknit_reconciler::Event;

use super::*;

/// Changes the ConfigMap `a` after the plan has written to it.
struct Late {
    writer: ApiServer,
    api: Api<ConfigMap>,
    /// The second write of the plan.
    replaces: bool,
}

impl ReconcileKind for Late {
    type Kind = Lamp;

    async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        let (params, live) =
            (PatchParams::default(), Api::<ConfigMap>::default_namespaced(self.writer.client()));
        let mut map = self.api.patch("a", &params, &merge(json!({"data": {"first": "1"}}))).await?;
        if live.get("a").await?.data.is_some_and(|data| data["live"] == "yes") {
            live.patch("a", &params, &merge(json!({"data": {"live": "changed"}}))).await?;
        }
        if self.replaces {
            map.data.get_or_insert_default().insert("second".into(), "2".into());
            self.api.replace("a", &PostParams::default(), &map).await?;
        } else {
            self.api.patch("a", &params, &merge(json!({"data": {"second": "2"}}))).await?;
        }
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn planned_writes_move_to_the_new_state_of_an_object_that_changes_meanwhile() {
    for replaces in [false, true] {
        let server = server();
        server.insert(&map_in_default("a"));
        let writer = server.clone();
        let main = Main::new("test").plannable().controller(move |cx| {
            let (writer, api) = (writer.clone(), Api::default_namespaced(cx.client()));
            Ok(Controller::of::<Lamp>(cx).reconciler(Late { writer, api, replaces }).build())
        });
        let (status, text, json) = plan(main, server.client().into()).await.unwrap();
        assert_eq!((status, &json["keys"][0]["passes"]), (3, &json!(2)), "{text}");
        let changed = &json["objects"][0];
        assert_eq!(changed["before"]["data"], json!({"live": "changed"}));
        assert_eq!(changed["after"]["data"], json!({"live": "changed", "first": "1", "second": "2"}));
        let map: ConfigMap = server.object(Some("default"), "a").unwrap();
        assert_eq!(json!(map.data), json!({"live": "changed"}));
    }
}

#[tokio::test]
async fn an_object_that_is_deleted_meanwhile_is_planned_as_gone() {
    let mut overlay = overlay::Overlay::default();
    let id = overlay::Id::of_namespace("a");
    let live = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
    *overlay.entry(&id) = overlay::Entry::unchanged(Some(live));
    overlay.rebase(&id, None);
    let entry = overlay.get(&id).unwrap();
    assert!(entry.before.is_none() && entry.after.is_none());
}

#[tokio::test]
async fn a_write_that_changes_nothing_keeps_the_version() {
    let server = server();
    server.insert(&map_in_default("a"));
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let (params, change) = (PatchParams::default(), merge(json!({"data": {"a": "1"}})));
            let first = maps.patch("a", &params, &change).await?;
            let second = maps.patch("a", &params, &change).await?;
            assert_eq!(first.resource_version(), second.resource_version());
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.json["keys"][0]["passes"], 1);
}

#[tokio::test]
async fn generated_names_of_keys_are_not_printed() {
    let planned = plan_script(&server(), |client, _, lamp| {
        async move {
            let lamps: Api<Lamp> = Api::default_namespaced(client.clone());
            let name = lamp.name_any();
            if name != "desk" {
                let maps: Api<ConfigMap> = Api::default_namespaced(client);
                let of_child = map(&format!("of-{}", lamp.uid().unwrap_or_default()), json!({}));
                if maps.get_opt(&of_child.name_any()).await?.is_none() {
                    let _ = maps.create(&PostParams::default(), &of_child).await?;
                }
                return Err(format!("{name} has no bulb").into());
            }
            if lamps.list(&ListParams::default()).await?.items.len() == 1 {
                let mut child = Lamp::new("", LampSpec {});
                (child.metadata.name, child.metadata.generate_name) = (None, Some("child-".into()));
                for _ in 0..2 {
                    let _ = lamps.create(&PostParams::default(), &child).await?;
                }
            }
            Ok(())
        }
        .boxed()
    })
    .await;
    let keys: Vec<_> = planned.json["keys"].as_array().unwrap().iter().map(|key| &key["key"]).collect();
    assert_eq!(keys, ["default/child-(generated)", "default/child-(generated)", "default/desk"]);
    let cause = json!({"controller": "lamps.plan.reknit.dev", "key": "default/child-(generated)"});
    assert_eq!(planned.json["objects"][0]["causes"], json!([cause]), "{}", planned.json);
    let failed = "lamps.plan.reknit.dev default/child-(generated), default/child-(generated): child-(generated) has no bulb\n";
    assert!(planned.text.contains(failed), "{}", planned.text);
}

/// Records an event about a ConfigMap with a generated name.
struct Reporter(Api<ConfigMap>);

impl ReconcileKind for Reporter {
    type Kind = Lamp;

    async fn reconcile_kind(&self, _: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        let mut map = map("", json!({}));
        (map.metadata.name, map.metadata.generate_name) = (None, Some("map-".into()));
        let map = self.0.create(&PostParams::default(), &map).await?;
        status.color = reknit_injection::internal::now().to_string();
        Ok(Outcome::done().event(Event::normal("Created", format!("created {}.", map.name_any()))))
    }
}

#[tokio::test]
async fn events_are_listed_and_times_are_not_printed() {
    let planned = plan_controller(&server(), |cx| {
        let api = Api::default_namespaced(cx.client());
        Ok(Controller::of::<Lamp>(cx).reconciler(Reporter(api)).build())
    })
    .await;
    let event =
        "lamps.plan.reknit.dev default/desk: Lamp default/desk: Normal Created: created map-(generated).";
    assert_eq!(planned.json["events"], json!([event]));
    assert!(planned.text.contains(&format!("Events:\n  {event}\n")));
    assert!(
        planned.text.contains("  ~ Lamp default/desk\n      + status.color: \"(now)\"\n"),
        "{}",
        planned.text
    );
}

#[tokio::test]
async fn a_plan_prints_no_characters_that_control_a_terminal_and_no_lines_of_others() {
    let planned = plan_script(&server(), |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let data = json!({"lines": "one\n\u{1b}[2Jtwo", "line": "\u{9b}31m"});
            maps.create(&PostParams::default(), &map("a", data)).await?;
            Err("no\u{1b}[1A\nPlan: 0 to create".into())
        }
        .boxed()
    })
    .await;
    assert!(!planned.text.contains(|c: char| c != '\n' && c.is_control()), "{:?}", planned.text);
    assert!(planned.text.contains("\\u{1b}[1A\n    Plan: 0 to create\n"), "{}", planned.text);
    assert_eq!(planned.text.lines().filter(|line| line.starts_with("Plan: ")).count(), 1, "{}", planned.text);
}

#[tokio::test]
async fn a_secret_is_masked_although_its_request_names_no_kind() {
    let planned = plan_script(&server(), |client, _, _| {
        async move {
            let namespace = serde_json::from_value(json!({"metadata": {"name": "new"}}))?;
            Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
            let body = json!({"metadata": {"name": "a"}, "data": {"key": "c2VjcmV0"}});
            let request = Request::post("/api/v1/namespaces/new/secrets").body(serde_json::to_vec(&body)?)?;
            client.request::<Value>(request).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    let object = &planned.json["objects"].as_array().unwrap().iter().find(|object| object["key"] == "new/a");
    assert_eq!(object.unwrap()["after"]["data"]["key"], "(masked value 1)");
}

#[tokio::test]
async fn a_value_that_the_author_names_is_masked_also_in_manifests() {
    let server = server();
    let map =
        json!({"metadata": {"name": "a", "namespace": "default"}, "data": {"token": "old-token", "a": "1"}});
    server.insert(&serde_json::from_value::<ConfigMap>(map).unwrap());
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let manifest = "kind: Secret\nstringData:\n  key: in-manifest\n";
            let change = merge(json!({"data": {"token": "new-token", "a": "2", "b": manifest}}));
            maps.patch("a", &PatchParams::default(), &change).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    let text = &planned.text;
    assert!(text.contains("~ data.token: \"(masked value 1)\" → \"(masked value 2)\"\n"), "{text}");
    assert!(
        text.contains("~ data.a: \"1\" → \"2\"\n") && text.contains("+ data.b: \"(masked value "),
        "{text}"
    );
    for value in ["old-token", "new-token", "in-manifest"] {
        assert!(!text.contains(value) && !planned.json.to_string().contains(value), "{value}: {text}");
    }
}

#[tokio::test]
async fn a_section_names_the_first_entries() {
    let planned = plan_script(&server(), |_, effects, lamp| {
        async move {
            for n in 0..30 {
                assert!(!effects.allowed(&lamp, || format!("create bucket {n}")));
            }
            Ok(())
        }
        .boxed()
    })
    .await;
    assert!(planned.text.contains("  and 10 more, which --plan-output json prints\n"), "{}", planned.text);
    assert_eq!(planned.json["effects"].as_array().map(Vec::len), Some(30));
}

/// `admissionregistration.k8s.io/v1` stores no webhook whose `sideEffects` are `Some` or `Unknown`: only one that was stored
/// by v1beta1 has them. So the test imitates the answer of the API server.
#[tokio::test]
async fn an_object_of_a_webhook_with_side_effects_is_planned_and_not_validated() {
    let server = server();
    let live: reknit_injection::internal::Transport = server.client().into();
    let refusing = tower::service_fn(move |request: Request<Body>| {
        let is_create = request.method() == http::Method::POST && request.uri().path().contains("configmaps");
        let response = live.send(request);
        async move {
            let message = "admission webhook \"a\" does not support dry run";
            match is_create {
                true => Ok(reply::Reply::failure(http::StatusCode::BAD_REQUEST, "BadRequest", message)
                    .into_response()),
                false => response.await.map_err(tower::BoxError::from),
            }
        }
    });
    let main = Main::new("test").plannable().controller(|cx| {
        let api = Api::default_namespaced(cx.client());
        Ok(Controller::of::<Lamp>(cx).reconciler(Reporter(api)).build())
    });
    let transport = reknit_injection::internal::Transport::new(refusing, "default");
    let (status, text, json) = plan(main, transport).await.unwrap();
    assert_eq!((status, &json["objects"][0]["key"]), (3, &json!("default/map-(generated)")), "{text}");
    assert!(
        text.contains("ConfigMap default/map-(generated): the object, since an admission webhook"),
        "{text}"
    );
}

/// Creates a ConfigMap.
struct Maker(Api<ConfigMap>);

impl ReconcileKind for Maker {
    type Kind = Lamp;

    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        let map = map(&lamp.name_any(), json!({"own": "own-x2k4z"}));
        self.0.create(&PostParams::default(), &map).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn objects_that_differ_only_in_names_that_the_api_server_generates_are_shown_once() {
    let server = server();
    server.insert(
        &serde_json::from_value::<Lamp>(json!({
            "apiVersion": "plan.reknit.dev/v1", "kind": "Lamp", "spec": {},
            "metadata": {"name": "hall", "namespace": "default", "uid": "1"},
        }))
        .unwrap(),
    );
    let (live, count) = (Transport::from(server.client()), Arc::new(AtomicUsize::new(2)));
    let admitting = tower::service_fn(move |request: Request<Body>| {
        let is_create = request.method() == http::Method::POST && request.uri().path().contains("configmaps");
        let response = live.send(request);
        let n = count.fetch_add(2 * usize::from(is_create), Ordering::Relaxed);
        async move {
            let response = response.await?;
            if !is_create {
                return Ok::<_, tower::BoxError>(response);
            }
            let mut object = reply::Reply::read(response).await?.json()?;
            object["data"]["volume"] = json!(format!("kube-api-access-x7k{n}z"));
            object["data"]["port"] = json!("mesh-https");
            Ok(reply::Reply::new(http::StatusCode::CREATED, &object).into_response())
        }
    });
    let main = Main::new("test").plannable().controller(|cx| {
        let api = Api::default_namespaced(cx.client());
        Ok(Controller::of::<Lamp>(cx).reconciler(Maker(api)).build())
    });
    let (_, text, _) = plan(main, Transport::new(admitting, "default")).await.unwrap();
    let group = "# lamps.plan.reknit.dev default/desk, default/hall\n  + ConfigMap default/desk\n      + data.own: \"own-x2k4z\"\n      \
                 + data.port: \"mesh-https\"\n      + data.volume: \"kube-api-access-(generated)\"\n";
    assert!(text.contains(group), "{text}");
}

#[tokio::test]
async fn a_name_in_a_request_is_not_generated_although_it_has_a_prefix_for_one() {
    let planned = plan_script(&server(), |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let mut map = map("mesh-https", json!({"own": "mesh-https"}));
            map.metadata.generate_name = Some("mesh-".into());
            maps.create(&PostParams::default(), &map).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    let shown = "  + ConfigMap default/mesh-https\n      + data.own: \"mesh-https\"\n";
    assert!(planned.text.contains(shown), "{}", planned.text);
}

#[tokio::test]
async fn a_name_in_the_path_of_a_request_is_not_generated() {
    let planned = plan_script(&server(), |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let applied = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap"}));
            maps.patch("own-b9d2m", &PatchParams::apply("test"), &applied).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    assert!(planned.text.contains("  + ConfigMap default/own-b9d2m\n"), "{}", planned.text);
}

/// The options of a deletion that expects this uid.
fn deletion_of(uid: Option<String>) -> DeleteParams {
    let preconditions = Preconditions { uid, resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

#[tokio::test]
async fn the_uid_that_a_deletion_of_a_planned_object_expects_is_checked_and_not_sent() {
    let server = server();
    server.insert(&map_in_default("live"));
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let live = maps.get("live").await?;
            let _ = maps.delete("live", &deletion_of(live.uid())).await?;
            for name in ["live", "new"] {
                let planned = maps.create(&PostParams::default(), &map(name, json!({}))).await?;
                let refused = maps.delete(name, &deletion_of(Some("other".into()))).await.unwrap_err();
                assert!(refused.to_string().contains("the object has been modified"), "{refused}");
                let _ = maps.delete(name, &deletion_of(planned.uid())).await?;
            }
            Ok(())
        }
        .boxed()
    })
    .await;
    let objects = planned.json["objects"].as_array().unwrap().iter();
    let objects: Vec<_> = objects.map(|object| [&object["action"], &object["key"]]).collect();
    assert_eq!(objects, [["delete", "default/live"]], "{}", planned.text);
}
