//! Passes that wait: for the first list of a Kind, or for something that a plan does not do.

use std::sync::atomic::{AtomicBool, Ordering};

use reknit_apis::KReference;
use reknit_injection::internal::HttpResponse;
use reknit_reconciler::{Kinds, TrackedAny};
use tokio::time::sleep;
use tower::BoxError;

use super::*;

/// Reads a ConfigMap of a Kind that is known only at run time, in its first pass only after a long time.
struct Late {
    maps: TrackedAny,
    has_waited: AtomicBool,
}

impl ReconcileKind for Late {
    type Kind = Lamp;

    async fn reconcile_kind(&self, lamp: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        if !self.has_waited.swap(true, Ordering::Relaxed) {
            sleep(Duration::from_secs(120)).await;
        }
        let map = KReference {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: "a".into(),
            ..KReference::default()
        };
        status.color = self.maps.get(lamp, &map).await?.map(|map| map.name_any()).unwrap_or_default();
        Ok(Outcome::done())
    }
}

/// A transport to the server that knows ConfigMaps, and lists them only after this time.
fn slow(server: &ApiServer, wait: Duration) -> Transport {
    let live: Transport = server.client().into();
    let send = move |request: Request<Body>| {
        let live = live.clone();
        async move {
            if request.uri().path() == "/api/v1" {
                let maps = json!({"name": "configmaps", "singularName": "", "kind": "ConfigMap", "namespaced": true,
                    "verbs": ["list", "watch"]});
                let list = json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [maps]});
                return Ok::<HttpResponse, BoxError>(reply::Reply::ok(&list).into_response());
            }
            if request.uri().path().ends_with("/configmaps") {
                sleep(wait).await;
            }
            Ok(live.send(request).await?)
        }
    };
    Transport::new(tower::service_fn(send), "default")
}

async fn plan_late(list: Duration) -> (u8, String, Value) {
    let server = server();
    server.insert(&map_in_default("a"));
    let main = Main::new("test").plannable().controller(|cx| {
        let mut build = Controller::of::<Lamp>(cx);
        let maps = build.track_any(Kinds::of([("", "configmaps")]));
        Ok(build.reconciler(Late { maps, has_waited: false.into() }).build())
    });
    plan(main, slow(&server, list)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_pass_runs_again_after_the_first_list_of_a_kind_however_late_it_opens_it() {
    let (status, text, json) = plan_late(Duration::from_secs(5)).await;
    assert_eq!((status, &json["keys"][0]["passes"]), (3, &json!(1)), "{text}");
    assert!(text.contains("~ Lamp default/desk\n      + status.color: \"a\""), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_does_not_come_is_a_failed_pass() {
    let (status, text, json) = plan_late(Duration::from_secs(100_000)).await;
    assert_eq!((status, &json["keys"][0]["quiescent"]), (4, &json!(true)), "{text}");
    assert!(text.contains("has not arrived yet"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_never_ends_is_dropped_and_fails() {
    let planned = plan_script(&server(), |_, _, _| std::future::pending().boxed()).await;
    assert_eq!(planned.status, 4);
    assert!(planned.text.contains("default/desk: the pass took longer than 300s and was dropped"));
}

/// A version of the Kind that calls a field otherwise than the stored objects do.
mod renamed {
    use super::*;

    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "plan.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
    pub(super) struct LampSpec {
        watts: u32,
    }

    kind!(Lamp {});

    pub(super) struct Never;

    impl ReconcileKind for Never {
        type Kind = Lamp;

        async fn reconcile_kind(&self, _: &Lamp, _: &mut ()) -> Result<Outcome> {
            Err("reconciled without its spec".into())
        }
    }
}

#[tokio::test]
async fn an_object_that_this_version_cannot_decode_makes_the_plan_incomplete() {
    let constructor =
        |cx: &Context| Ok(Controller::of::<renamed::Lamp>(cx).reconciler(renamed::Never).build());
    let planned = plan_controller(&server(), constructor).await;
    let line = "lamps.plan.reknit.dev default/desk: spec: missing field `watts`";
    assert!(planned.text.starts_with(&format!("Not decoded (this version would skip them):\n  {line}\n")));
    assert_eq!((planned.status, &planned.json["notDecoded"]), (4, &json!([line])));
}
