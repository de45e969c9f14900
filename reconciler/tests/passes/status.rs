//! Status writes: their content, conflicts and errors.

use std::sync::atomic::{AtomicUsize, Ordering};

use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    client::Body,
};
use reknit_injection::{Context, Informer};
use reknit_reconciler::Event;
use reknit_testing::{ApiServer, ControllerExt, Verb, given};
use serde::Deserializer;
use serde_json::{Value, json};

use super::*;

/// A controller whose cache has this object at resourceVersion 1. The server's object may be newer or absent.
fn controller_with_cached(server: &ApiServer, cached: &Lamp, pass: impl PassFn) -> Controller {
    let mut cached = serde_json::to_value(cached).unwrap();
    cached["metadata"]["resourceVersion"] = json!("1");
    reconciling(pass)(&Context::preloaded("test", server.client(), vec![cached])).unwrap()
}

/// Changes the lamp through a client without a cache, and clears the recorded writes.
async fn merge(server: &ApiServer, patch: Value) {
    let lamps: Api<Lamp> = Api::namespaced(server.client(), "default");
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    if has_status(&patch) {
        lamps.patch_status("x", &params, &patch).await.unwrap();
    } else {
        lamps.patch("x", &params, &patch).await.unwrap();
    }
    server.take_writes();
}

fn has_status(patch: &Patch<Value>) -> bool {
    matches!(patch, Patch::Merge(patch) if patch["status"].is_object())
}

/// Returns the stored lamp, including fields that [`LampStatus`] does not know.
async fn stored_json(server: &ApiServer) -> Value {
    let request =
        http::Request::get("/apis/demo.reknit.dev/v1/namespaces/default/lamps/x").body(vec![]).unwrap();
    server.client().request(request).await.unwrap()
}

/// A lamp with the status that [`light`] sets.
fn lit_lamp() -> Lamp {
    let mut lamp = lamp();
    let mut status = LampStatus::default();
    status.light();
    status.duck.observed_generation = Some(1);
    lamp.status = Some(status);
    lamp
}

#[tokio::test]
async fn only_the_difference_is_sent_with_the_version_that_was_read() {
    let unplugging = |_: &Lamp, status: &mut LampStatus| {
        status.lit = Some(false);
        Ok(Outcome::done())
    };
    let effects = given(lit_lamp()).reconcile(reconciling(unplugging), "default/x").await;
    assert_eq!(effects.writes(), ["patch lamps/status default/x"]);
    let expected = json!({"metadata": {"resourceVersion": "1"}, "status": {"lit": false}});
    assert_eq!(effects.write(0).body, expected);
    assert!(effects.enqueued.is_empty(), "the write that ends a pass enqueued its key");
}

#[tokio::test]
async fn a_cleared_field_is_removed() {
    let clearing = |_: &Lamp, status: &mut LampStatus| {
        status.lit = None;
        Ok(Outcome::done())
    };
    let effects = given(lit_lamp()).reconcile(reconciling(clearing), "default/x").await;
    assert_eq!(effects.write(0).body["status"], json!({"lit": null}));
}

#[tokio::test]
async fn nothing_is_sent_if_only_a_transition_time_differs() {
    let flapping = |_: &Lamp, status: &mut LampStatus| {
        Lamp::CONDITIONS.manage(status).mark_false("Ready", "Flap", "for a moment");
        status.light();
        Ok(Outcome::done())
    };
    let mut lamp = lit_lamp();
    let long_ago = Time("2020-01-01T00:00:00Z".parse().unwrap());
    lamp.status.as_mut().unwrap().duck.conditions[0].last_transition_time = Some(long_ago);
    let effects = given(lamp).reconcile(reconciling(flapping), "default/x").await;
    effects.result.as_ref().unwrap();
    assert!(effects.writes().is_empty(), "{:?}", effects.write(0).body);
}

#[tokio::test]
async fn a_new_generation_without_a_marked_condition_is_not_ready() {
    let mut lamp = lit_lamp();
    lamp.metadata.generation = Some(2);
    let effects = given(lamp).reconcile(reconciling(|_, _| Ok(Outcome::done())), "default/x").await;
    let status = &effects.write(0).body["status"];
    assert_eq!(status["observedGeneration"], 2);
    let ready = &status["conditions"][0];
    assert_eq!([&ready["status"], &ready["reason"]], ["Unknown", "NewObservedGenFailure"]);
    assert_eq!(ready["message"], "unsuccessfully observed a new generation");
}

#[tokio::test]
async fn the_status_of_a_failed_pass_is_written_too() {
    let failing = |_: &Lamp, status: &mut LampStatus| {
        status.lit = Some(false);
        Err("no power".into())
    };
    let effects = given(lit_lamp()).reconcile(reconciling(failing), "default/x").await;
    assert_eq!(effects.write(0).body["status"], json!({"lit": false}));
    assert_eq!(effects.result.as_ref().unwrap_err().to_string(), "no power");
    assert_eq!(effects.events(), [Event::warning("InternalError", "no power")]);
}

#[tokio::test]
async fn the_errors_of_a_pass_and_of_its_status_write_are_both_reported() {
    let failing = |_: &Lamp, status: &mut LampStatus| {
        status.lit = Some(false);
        Err(reknit_reconciler::Error::permanent("no power"))
    };
    let effects = given(lit_lamp())
        .failing(Verb::Patch, "lamps/status", 500)
        .reconcile(reconciling(failing), "default/x")
        .await;
    let update_failed =
        "Failed to update status for \"x\": inducing failure for patch lamps/status (500 InternalError)";
    let events = [Event::warning("InternalError", "no power"), Event::warning("UpdateFailed", update_failed)];
    assert_eq!(effects.events(), events);
    let error = effects.result.unwrap_err();
    let message = "no power; then: failed to update status for \"x\": inducing failure for patch lamps/status (500 InternalError)";
    assert_eq!(error.to_string(), message);
    assert!(!error.is_permanent(), "permanent, although the write may succeed later");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_retried_in_at_most_five_attempts() {
    let pass_with_conflicts = async |times| {
        given(lamp())
            .failing_times(Verb::Patch, "lamps/status", 409, times)
            .reconcile(reconciling(light), "default/x")
            .await
    };
    let effects = pass_with_conflicts(4).await;
    effects.result.as_ref().unwrap();
    assert_eq!(effects.writes().len(), 5);
    assert_eq!(
        effects.enqueued,
        [key()],
        "not enqueued, although the pass has not seen the newer state that was read after the conflict"
    );
    let effects = pass_with_conflicts(9).await;
    assert_eq!(effects.writes().len(), 5);
    assert!(effects.result.as_ref().unwrap_err().is_conflict());
    assert!(effects.events().is_empty(), "a conflict was recorded as an event");
}

#[tokio::test(start_paused = true)]
async fn concurrent_changes_of_other_fields_are_kept() {
    let server = ApiServer::new();
    server.insert(&lamp());
    let controller = controller_with_cached(&server, &lamp(), light);
    merge(&server, json!({"spec": {"watts": 60}})).await;
    merge(&server, json!({"status": {"annotations": {"by": "another"}, "newer": {"field": 1}}})).await;
    let _ = controller.once(&key()).await.unwrap();
    let writes: Vec<_> = server.take_writes().iter().map(ToString::to_string).collect();
    assert_eq!(writes, ["patch lamps/status default/x"; 2]);
    let after = stored_json(&server).await;
    assert_eq!(after["spec"]["watts"], 60);
    assert_eq!(
        after["status"]["newer"]["field"], 1,
        "a status field that this version does not know was not kept"
    );
    assert_eq!(after["status"]["annotations"]["by"], "another");
    assert_eq!(after["status"]["lit"], true);
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_change_of_the_same_list_is_left_to_the_next_pass() {
    let server = ApiServer::new();
    server.insert(&lamp());
    let controller = controller_with_cached(&server, &lamp(), light);
    merge(&server, json!({"status": {"conditions": [{"type": "Dusty", "status": "True"}]}})).await;
    assert!(controller.once(&key()).await.unwrap_err().is_conflict());
    assert_eq!(server.take_writes().len(), 1, "more than the conflicting write");
    let _ = controller.once(&key()).await.unwrap();
    let conditions = &stored_json(&server).await["status"]["conditions"];
    let types: Vec<_> = conditions.as_array().unwrap().iter().map(|condition| &condition["type"]).collect();
    assert_eq!(types, ["Dusty", "Ready"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_after_a_conflict_if_the_stored_status_is_already_right() {
    let server = ApiServer::new();
    server.insert(&lamp());
    let controller = controller_with_cached(&server, &lamp(), light);
    merge(
        &server,
        json!({"status": {
            "lit": true, "observedGeneration": 1,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}],
        }}),
    )
    .await;
    let before = stored_json(&server).await;
    let _ = controller.once(&key()).await.unwrap();
    assert_eq!(server.take_writes().len(), 1);
    assert_eq!(stored_json(&server).await, before);
}

#[tokio::test(start_paused = true)]
async fn no_status_is_written_if_the_object_was_deleted_or_replaced() {
    for replaced in [false, true] {
        let server = ApiServer::new();
        let controller = controller_with_cached(&server, &lamp(), light);
        if replaced {
            let lamps: Api<Lamp> = Api::namespaced(server.client(), "default");
            lamps.create(&PostParams::default(), &lamp()).await.unwrap();
            server.take_writes();
        }
        let outcome = controller.once(&key()).await.unwrap();
        assert_eq!(outcome, Outcome::done());
        assert_eq!(server.take_writes().len(), 1, "one attempt; replaced: {replaced}");
        if replaced {
            assert!(stored_json(&server).await["status"].is_null());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_status_subresource_is_an_error_that_names_the_object() {
    let effects = given(lamp())
        .failing(Verb::Patch, "lamps/status", 404)
        .reconcile(reconciling(light), "default/x")
        .await;
    let message = effects.result.as_ref().unwrap_err().to_string();
    assert_eq!(message, "failed to update status for \"x\"");
    assert_eq!(effects.events()[0].reason, "UpdateFailed");
}

#[tokio::test]
async fn defaults_are_visible_to_the_pass_and_not_written() {
    let record_default = |lamp: &Lamp, status: &mut LampStatus| {
        status.lit = Some(lamp.spec.watts == Some(40));
        Ok(Outcome::done())
    };
    let effects = given(lamp()).reconcile(reconciling(record_default), "default/x").await;
    let after = effects.object::<Lamp>("default/x").unwrap();
    assert_eq!((after.status.unwrap().lit, after.spec.watts), (Some(true), None));
}

#[tokio::test]
async fn an_unchanged_default_status_is_not_written() {
    use reknit_apis::kind;

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Plain", namespaced, status = "PlainStatus")]
    struct PlainSpec {}
    #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
    struct PlainStatus {
        one: u8,
        two: u8,
        #[serde(skip)]
        seen: bool,
    }
    kind!(Plain { status: PlainStatus });
    struct SetField(u8);
    impl ReconcileKind for SetField {
        type Kind = Plain;
        async fn reconcile_kind(&self, _: &Plain, status: &mut PlainStatus) -> Result<Outcome> {
            (status.one, status.seen) = (self.0, true);
            Ok(Outcome::done())
        }
    }
    let pass = async |one| {
        let mut plain = Plain::new("x", PlainSpec {});
        plain.metadata.namespace = Some("default".into());
        let make = |cx: &Context| Ok(Controller::of::<Plain>(cx).reconciler(SetField(one)).build());
        given(plain).reconcile(make, "default/x").await
    };
    assert!(pass(0).await.writes().is_empty());
    let whole = pass(1).await;
    assert_eq!(
        whole.write(0).body["status"],
        json!({"one": 1, "two": 0}),
        "not the whole status, although a partial status could not be decoded"
    );
}

/// A Kind whose defaults wrongly also change the status and the finalizers, or panic.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Odd", namespaced, status = "LampStatus")]
struct OddSpec {
    panics: bool,
}

kind!(Odd {
    status: LampStatus,
    conditions: knative(),
    defaults: |odd| {
        assert!(!odd.spec.panics, "as planned");
        odd.status.get_or_insert_default().lit = Some(true);
        odd.metadata.finalizers = Some(vec!["odds.demo.reknit.dev".into()]);
    },
});

/// Sets `lit` to its default, and marks the object Ready.
struct OddReconciler;

impl ReconcileKind for OddReconciler {
    type Kind = Odd;
    async fn reconcile_kind(&self, odd: &Odd, status: &mut LampStatus) -> Result<Outcome> {
        status.lit = odd.status.as_ref().and_then(|status| status.lit);
        Odd::CONDITIONS.manage(status).mark_true("Ready");
        Ok(Outcome::done())
    }
}

impl FinalizeKind for OddReconciler {
    async fn finalize_kind(&self, _: &Odd, _: &mut LampStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn defaults_that_change_the_status_do_not_hide_its_write_and_a_panic_in_defaults_is_an_error() {
    let pass = async |panics| {
        let mut odd = Odd::new("x", OddSpec { panics });
        odd.metadata.namespace = Some("default".into());
        let make =
            |cx: &Context| Ok(Controller::of::<Odd>(cx).reconciler(OddReconciler).finalizing().build());
        given(odd).reconcile(make, "default/x").await
    };
    let effects = pass(false).await;
    assert_eq!(effects.writes(), ["patch odds default/x", "patch odds/status default/x"]);
    assert_eq!(effects.write(1).body["status"]["lit"], true);
    let panicked = pass(true).await;
    let message = "the reconciler panicked: as planned";
    assert_eq!(panicked.result.as_ref().unwrap_err().to_string(), message);
    assert_eq!(panicked.events().last(), Some(&Event::warning("InternalError", message)));
}

/// A Kind that counts how often it is decoded.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Counted", namespaced, status = "LampStatus")]
struct CountedSpec {
    #[serde(deserialize_with = "count_and_decode")]
    watts: u32,
}

kind!(Counted { status: LampStatus, conditions: knative() });

static DECODED: AtomicUsize = AtomicUsize::new(0);

fn count_and_decode<'de, D: Deserializer<'de>>(watts: D) -> Result<u32, D::Error> {
    DECODED.fetch_add(1, Ordering::Relaxed);
    u32::deserialize(watts)
}

struct CountedReconciler;

impl ReconcileKind for CountedReconciler {
    type Kind = Counted;
    async fn reconcile_kind(&self, _: &Counted, status: &mut LampStatus) -> Result<Outcome> {
        status.lit = Some(true);
        Ok(Outcome::done())
    }
}

/// Returns a client that lists one object at version 5, and responds to a status write with this status at version 6.
fn client_with_status_response(status: Value) -> Client {
    let object = |version: &str, status: &Value| {
        json!({"apiVersion": "demo.reknit.dev/v1", "kind": "Counted", "spec": {"watts": 40}, "status": status,
            "metadata": {"name": "x", "namespace": "default", "uid": "uid-x", "resourceVersion": version}})
    };
    let respond = move |request: http::Request<Body>| {
        let body = match request.method() {
            &http::Method::PATCH => object("6", &status),
            _ => json!({"metadata": {"resourceVersion": "5"}, "items": [object("5", &json!({}))]}),
        };
        async move {
            if request.uri().query().is_some_and(|query| query.contains("watch=")) {
                std::future::pending::<()>().await;
            }
            http::Response::builder().body(Body::from(body.to_string().into_bytes()))
        }
    };
    Client::new(tower::service_fn(respond), "default")
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_decodes_its_object_and_the_response_to_its_status_write_once_each() {
    for (status, cached, decoded) in [
        (json!({"lit": true}), "6", 2),
        // A response that cannot be decoded does not enter the cache. It is decoded again for the path of the error.
        (json!({"lit": "yes"}), "5", 3),
    ] {
        let cx = Context::new("test", client_with_status_response(status));
        let controller = Controller::of::<Counted>(&cx).reconciler(CountedReconciler).build();
        let objects: Informer<Counted> = cx.get();
        cx.informers().start();
        objects.synced().await;
        DECODED.store(0, Ordering::Relaxed);
        let _ = controller.once(&key()).await.unwrap();
        assert_eq!(DECODED.load(Ordering::Relaxed), decoded);
        assert_eq!(objects.get(&key()).unwrap().metadata.resource_version.as_deref(), Some(cached));
    }
}

#[tokio::test]
async fn fields_of_the_conditions_of_others_that_the_type_does_not_have_are_kept() {
    let server = ApiServer::new();
    let mut lamp = json!(lit_lamp());
    let theirs = json!({"type": "Theirs", "status": "True", "observedGeneration": 1});
    lamp["status"]["conditions"].as_array_mut().unwrap().push(theirs.clone());
    let cached = server.insert(&serde_json::from_value::<DynamicObject>(lamp).unwrap());
    let failing = |_: &Lamp, status: &mut LampStatus| {
        Lamp::CONDITIONS.manage(status).mark_false("Ready", "Broken", "no light");
        Ok(Outcome::done())
    };
    let cx = Context::preloaded("test", server.client(), vec![cached]);
    let _ = reconciling(failing)(&cx).unwrap().once(&key()).await.unwrap();
    let stored = stored_json(&server).await;
    let conditions = stored["status"]["conditions"].as_array().unwrap();
    assert!(conditions.contains(&theirs), "{stored}");
    assert_eq!(conditions[0]["reason"], "Broken");
}
