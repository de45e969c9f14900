//! Statuses that the schema of the Kind does not admit as they are, on a real API server.

use std::sync::{Arc, Mutex};

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, CustomResource, CustomResourceExt, ResourceExt,
    api::{ListParams, PostParams},
    client::Body,
};
use prometheus::Registry;
use reknit_apis::{StatusConditions, definition_of, kind};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Key, Outcome, ReconcileKind, Recorder, Result};
use reknit_testing::{ControllerExt, eventually};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Fixture, TIMEOUT};

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "status.reknit.dev", version = "v1", kind = "Meter", namespaced, status = "MeterStatus")]
struct MeterSpec {}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct MeterStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
    #[serde(default)]
    watts: u32,
    /// The installed schema lacks this field.
    #[serde(default)]
    volts: Option<u32>,
}

kind!(Meter { status: MeterStatus, conditions: metav1(conditions) });

/// Sets the status to the one that the test wants.
struct Measuring(Arc<Mutex<MeterStatus>>);

impl ReconcileKind for Measuring {
    type Kind = Meter;

    async fn reconcile_kind(&self, _: &Meter, status: &mut MeterStatus) -> Result<Outcome> {
        let wanted = self.0.lock().unwrap().clone();
        (status.watts, status.volts) = (wanted.watts, wanted.volts);
        for condition in wanted.conditions {
            let reason = condition.reason.as_str();
            status.conditions.mark_false(&condition.type_, reason, condition.message);
        }
        Ok(Outcome::done())
    }
}

/// A controller of meters, with one meter in its cache and on the API server.
struct Meters {
    fixture: Fixture,
    controller: Controller,
    recorder: Recorder,
    registry: Registry,
    wanted: Arc<Mutex<MeterStatus>>,
    patches: Arc<Mutex<usize>>,
}

impl Meters {
    async fn new() -> Self {
        let fixture = Fixture::new("status").await;
        install(&fixture).await;
        let meter = meters(&fixture).create(&PostParams::default(), &Meter::new("x", MeterSpec {})).await;
        let (client, patches) = counting_client(&fixture.client);
        let (wanted, cached) = (Arc::<Mutex<MeterStatus>>::default(), json!(meter.unwrap()));
        let (controller, recorder, registry) = {
            let cx = Context::preloaded("test", client, vec![cached]);
            let build = Controller::of::<Meter>(&cx);
            let recorder = build.recorder();
            (build.reconciler(Measuring(wanted.clone())).build(), recorder, cx.metrics().clone())
        };
        Self { fixture, controller, recorder, registry, wanted, patches }
    }

    /// Runs a pass, and returns the number of its status patches and the stored status.
    async fn pass(&self) -> (usize, MeterStatus) {
        let _ = self.controller.once(&Key::new(self.fixture.namespace.as_str(), "x")).await.unwrap();
        let stored = meters(&self.fixture).get("x").await.unwrap();
        (std::mem::take(&mut *self.patches.lock().unwrap()), stored.status.unwrap_or_default())
    }

    /// The number of keys whose status lacks fields, as a scrape reads it.
    fn keys_with_dropped_fields(&self) -> f64 {
        let families = self.registry.gather();
        let dropped = families.iter().find(|family| family.name() == "reknit_status_fields_dropped_keys");
        dropped.unwrap().get_metric()[0].get_gauge().get_value()
    }
}

fn meters(fixture: &Fixture) -> Api<Meter> {
    Api::namespaced(fixture.client.clone(), &fixture.namespace)
}

/// Returns a client that counts its status patches.
pub(crate) fn counting_client(client: &Client) -> (Client, Arc<Mutex<usize>>) {
    let (client, patches) = (client.clone(), Arc::<Mutex<usize>>::default());
    let count = patches.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        *count.lock().unwrap() += usize::from(request.uri().path().ends_with("/status"));
        let client = client.clone();
        async move { client.send(request).await }
    });
    (Client::new(service, "default"), patches)
}

/// Installs the Kind with the standard schema of conditions and without `status.volts`.
async fn install(fixture: &Fixture) {
    let mut crd = json!(Meter::crd());
    let status = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    status["properties"].as_object_mut().unwrap().remove("volts").unwrap();
    let condition = &mut status["properties"]["conditions"]["items"]["properties"];
    condition["message"]["maxLength"] = json!(32768);
    condition["reason"]["pattern"] = json!("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$");
    condition["reason"]["maxLength"] = json!(1024);
    condition["reason"]["minLength"] = json!(1);
    let crds: Api<CustomResourceDefinition> = Api::all(fixture.client.clone());
    match crds.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        created => drop(created.unwrap()),
    }
    let meters = meters(fixture);
    let is_served = async || meters.list(&ListParams::default()).await.is_ok();
    eventually("the Kind to be served", TIMEOUT, is_served).await;
}

#[tokio::test]
async fn a_status_with_invalid_conditions_is_made_valid_and_written_once() {
    let meters = Meters::new().await;
    {
        let mut wanted = meters.wanted.lock().unwrap();
        wanted.watts = 60;
        wanted.conditions.mark_false("Ready", "no power: 230V", "é".repeat(20_000));
    }
    let (patches, stored) = meters.pass().await;
    assert_eq!((patches, stored.watts), (1, 60));
    let condition = stored.conditions.condition("Ready").unwrap();
    assert_eq!(condition.reason, "noPower:230V");
    assert_eq!(condition.message, "é".repeat(16_384));
    assert_eq!(meters.pass().await, (0, stored));
}

#[tokio::test]
async fn a_field_that_the_schema_lacks_is_reported_and_not_sent_again() {
    let meters = Meters::new().await;
    *meters.wanted.lock().unwrap() = MeterStatus { watts: 60, volts: Some(230), ..MeterStatus::default() };
    let (patches, stored) = meters.pass().await;
    assert_eq!((patches, stored.watts, stored.volts), (1, 60, None));
    assert_eq!(meters.keys_with_dropped_fields(), 1.0);
    assert_eq!(meters.pass().await.0, 0);
    meters.wanted.lock().unwrap().watts = 70;
    let (patches, stored) = meters.pass().await;
    assert_eq!((patches, stored.watts), (1, 70), "a change of another field is not written");
    assert_eq!(meters.pass().await.0, 0);
    meters.wanted.lock().unwrap().volts = Some(231);
    assert_eq!(meters.pass().await.0, 1, "another value is not tried");
    assert_eq!(meters.keys_with_dropped_fields(), 1.0);
    let volts = meters.wanted.lock().unwrap().volts.take();
    assert_eq!(
        (meters.pass().await.0, meters.keys_with_dropped_fields()),
        (0, 0.0),
        "nothing is to be stored"
    );
    meters.wanted.lock().unwrap().volts = volts;
    assert_eq!((meters.pass().await.0, meters.keys_with_dropped_fields()), (0, 1.0), "the change is known");

    meters.recorder.flush().await;
    let uid = self::meters(&meters.fixture).get("x").await.unwrap().uid().unwrap();
    let events = meters.fixture.events_about(&meters.fixture.namespace, &uid).await;
    let [event] = &events[..] else { panic!("not one event: {events:?}") };
    assert_eq!(event.reason.as_deref(), Some("StatusFieldsDropped"));
    let expected = "the API server did not store status.volts: add them to the schema of Meter's \
                    CustomResourceDefinition";
    assert_eq!(event.note.as_deref(), Some(expected));
}

/// A Kind as a release knows it that is older than the installed definition.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "status.reknit.dev", version = "v1", kind = "Gauge", namespaced, status = "GaugeStatus")]
struct GaugeSpec {}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct GaugeStatus {
    watts: u32,
}

kind!(Gauge { status: GaugeStatus });

mod newer {
    use super::*;

    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "status.reknit.dev", version = "v1", kind = "Gauge", namespaced, status = "GaugeStatus")]
    pub(super) struct GaugeSpec {}

    #[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
    pub(super) struct GaugeStatus {
        watts: u32,
        colour: String,
    }
}

struct Gauging;

impl ReconcileKind for Gauging {
    type Kind = Gauge;

    async fn reconcile_kind(&self, _: &Gauge, status: &mut GaugeStatus) -> Result<Outcome> {
        status.watts = 60;
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_release_writes_its_status_beside_a_newer_definition_with_another_field() {
    let fixture = Fixture::new("newer-status").await;
    let crds: Api<CustomResourceDefinition> = Api::all(fixture.client.clone());
    crds.create(&PostParams::default(), &definition_of::<newer::Gauge>().unwrap()).await.unwrap();
    let gauges: Api<Gauge> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let is_served = async || gauges.list(&ListParams::default()).await.is_ok();
    eventually("the Kind to be served", TIMEOUT, is_served).await;
    let gauge = gauges.create(&PostParams::default(), &Gauge::new("x", GaugeSpec {})).await.unwrap();
    let cx = Context::preloaded("test", fixture.client.clone(), vec![json!(gauge)]);
    let controller = Controller::of::<Gauge>(&cx).reconciler(Gauging).build();
    let _ = controller.once(&Key::new(fixture.namespace.as_str(), "x")).await.unwrap();
    assert_eq!(gauges.get("x").await.unwrap().status, Some(GaugeStatus { watts: 60 }));
}
