//! Fractions in a status and in a child, on a real API server.

use http::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, CustomResource, CustomResourceExt};
use reknit_apis::kind;
use reknit_injection::Context;
use reknit_reconciler::{
    Applied, Controller, Key, Outcome, Owned, ReconcileKind, Result, controller_reference,
};
use reknit_testing::{ControlPlane, ControllerExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Fixture, status::counting_client};

/// serde_json without the feature `float_roundtrip` reads this as 0.9215686321258544.
const RATIO: &str = "0.9215686321258545";

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "fractions.reknit.dev", version = "v1", kind = "Dial", namespaced, status = "DialStatus")]
struct DialSpec {
    replicas: u32,
    ratio: f64,
    /// An `f32` of 0.3 exceeds the maximum once it is an `f64`.
    #[schemars(range(max = 0.3))]
    share: f32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct DialStatus {
    level: f32,
    ratio: f64,
}

kind!(Dial { status: DialStatus });

struct Dials(Fixture);

impl Dials {
    async fn new() -> Self {
        ControlPlane::shared().await.unwrap().install_crd(Dial::crd()).await.unwrap();
        Self(Fixture::new("fractions").await)
    }

    fn path(&self) -> String {
        format!("/apis/fractions.reknit.dev/v1/namespaces/{}/dials", self.0.namespace)
    }

    /// Creates a Dial with [`RATIO`] from its text, as another client does.
    async fn create(&self, metadata: &Value) -> Value {
        let body = format!(
            r#"{{"apiVersion": "fractions.reknit.dev/v1", "kind": "Dial", "metadata": {metadata},
                 "spec": {{"replicas": 1, "ratio": {RATIO}, "share": 0.1}}}}"#
        );
        let request = Request::post(self.path()).header("content-type", "application/json");
        self.0.client.request(request.body(body.into_bytes()).unwrap()).await.unwrap()
    }

    /// The text that the API server has stored for a part of the Dial.
    async fn stored(&self, name: &str, part: &str) -> String {
        let request = Request::get(format!("{}/{name}", self.path())).body(Vec::new()).unwrap();
        let text = self.0.client.request_text(request).await.unwrap();
        let start = text.rfind(&format!("\"{part}\":{{")).unwrap_or(text.len());
        text[start..].split_inclusive('}').next().unwrap_or_default().to_owned()
    }
}

/// Sets the status to an `f32`, and to the ratio of the spec.
struct Reading;

impl ReconcileKind for Reading {
    type Kind = Dial;
    async fn reconcile_kind(&self, dial: &Dial, status: &mut DialStatus) -> Result<Outcome> {
        *status = DialStatus { level: 0.1, ratio: dial.spec.ratio };
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn fractions_of_a_status_are_stored_as_the_program_has_them_and_written_once() {
    let dials = Dials::new().await;
    dials.create(&json!({"name": "x"})).await;
    let (client, patches) = counting_client(&dials.0.client);
    for sent in [1, 0] {
        let api: Api<Dial> = Api::namespaced(dials.0.client.clone(), &dials.0.namespace);
        let cx = Context::preloaded("test", client.clone(), vec![json!(api.get("x").await.unwrap())]);
        let controller = Controller::of::<Dial>(&cx).reconciler(Reading).build();
        drop(cx);
        let _ = controller.once(&Key::new(dials.0.namespace.as_str(), "x")).await.unwrap();
        assert_eq!(std::mem::take(&mut *patches.lock().unwrap()), sent);
        let status = dials.stored("x", "status").await;
        assert_eq!(status, format!(r#""status":{{"level":0.1,"ratio":{RATIO}}}"#));
    }
}

#[tokio::test]
async fn a_fraction_that_an_update_does_not_touch_stays_as_it_is() {
    let dials = Dials::new().await;
    let owner = dials.0.create("owner", &[]).await;
    let stored = dials.create(&json!({"name": "x", "ownerReferences": [controller_reference(&owner)]})).await;
    let cx = Context::preloaded("test", dials.0.client.clone(), vec![json!(owner), stored]);
    let children: Owned<Dial> = Controller::of::<ConfigMap>(&cx).owns();
    let spec = DialSpec { replicas: 1, ratio: 1.0, share: 0.1 };
    let updated =
        children.create_or_update(&owner, Dial::new("x", spec), |dial| dial.spec.replicas = 2).await;
    assert!(matches!(updated.unwrap(), Applied::Updated { .. }));
    let spec = dials.stored("x", "spec").await;
    assert_eq!(spec, format!(r#""spec":{{"ratio":{RATIO},"replicas":2,"share":0.1}}"#));
}

#[tokio::test]
async fn a_fraction_of_32_bits_is_applied_as_its_shortest_decimal() {
    let dials = Dials::new().await;
    let owner = dials.0.create("owner", &[]).await;
    let cx = Context::preloaded("test", dials.0.client.clone(), vec![json!(owner)]);
    let children: Owned<Dial> = Controller::of::<ConfigMap>(&cx).owns();
    let spec = DialSpec { replicas: 1, ratio: RATIO.parse().unwrap(), share: 0.3 };
    for is_created in [true, false] {
        let applied = children.apply(&owner, Dial::new("x", spec.clone())).await.unwrap();
        assert_eq!(matches!(applied, Applied::Created(_)), is_created, "{applied:?}");
    }
    let spec = dials.stored("x", "spec").await;
    assert_eq!(spec, format!(r#""spec":{{"ratio":{RATIO},"replicas":1,"share":0.3}}"#));
}
