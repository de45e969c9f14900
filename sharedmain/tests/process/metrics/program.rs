//! The process whose metrics are read: the spec of a bulb says what its pass, or its validation, does.
use std::{
    env,
    future::pending,
    io::Read,
    time::{Duration, SystemTime},
};

use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, CustomResource, CustomResourceExt, ResourceExt,
    api::{Patch, PatchParams},
};
use reknit_apis::{FieldError, Request, Validatable, kind};
use reknit_injection::Context;
use reknit_reconciler::{
    Controller, Error, Event, Outcome, Owned, OwnedOptions, ReconcileKind, Recorder, Result,
};
use reknit_sharedmain::Main;
use reknit_webhook::Webhook;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::scenarios::{LABEL, OldOven, ask, lamps, selection};

/// The workers of the controller of bulbs. So many keys are in both buckets.
pub(super) const WORKERS: usize = 16;

#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(group = "process.reknit.dev", version = "v1", kind = "Bulb", namespaced, status = "BulbStatus")]
pub(super) struct BulbSpec {
    task: String,
    #[serde(default)]
    value: String,
    /// The definition that the test installs admits any value.
    #[serde(default)]
    watts: i64,
    /// The definition that the test installs lacks this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    volts: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct BulbStatus {
    #[serde(default)]
    task: String,
    /// The definition that the test installs lacks this field.
    #[serde(default)]
    lit: bool,
}

kind!(Bulb { status: BulbStatus });

impl Validatable for Bulb {
    fn validate(&self, _: &Request) -> FieldError {
        match &*self.spec.task {
            "panic" => panic!("as planned"),
            "ask" => {
                // Neither the byte nor an error matters.
                _ = std::net::TcpStream::connect(&self.spec.value).and_then(|mut gate| gate.read(&mut [0]));
            }
            _ => {}
        }
        FieldError::none()
    }
}

/// The definition of an earlier version of the Kind.
pub(super) fn definition() -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(Bulb::crd()).unwrap();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    schema["spec"]["properties"]["watts"] = json!({"x-kubernetes-preserve-unknown-fields": true});
    for (part, field) in [("spec", "volts"), ("status", "lit")] {
        schema[part]["properties"].as_object_mut().unwrap().remove(field).unwrap();
    }
    serde_json::from_value(definition).unwrap()
}

pub(crate) fn add_controllers(main: Main) -> Main {
    main.controller(bulbs).controller(endless).controller(lamps).webhook(webhook).plannable()
}

fn webhook(_: &Context) -> Result<Webhook> {
    Ok(Webhook::new("process.reknit.dev").validation::<Bulb>().conversion::<OldOven>())
}

fn bulbs(cx: &Context) -> Result<Controller> {
    let mut build = Controller::selected::<Bulb>(cx, selection()).name("bulbs");
    build = build.workers(WORKERS).slow_after(Duration::from_secs(1));
    let maps = build.owns_in(&cx.informer(selection().label("color", "")), OwnedOptions::default());
    let bulbs = build.owns_in(&cx.informer(selection()), OwnedOptions::default());
    let (client, recorder, color) = (build.client(), build.recorder(), env::var("COLOR")?);
    Ok(build.reconciler(Bulbs { client, recorder, maps, bulbs, color }).build())
}

struct Bulbs {
    client: Client,
    recorder: Recorder,
    maps: Owned<ConfigMap>,
    bulbs: Owned<Bulb>,
    color: String,
}

impl ReconcileKind for Bulbs {
    type Kind = Bulb;

    async fn reconcile_kind(&self, bulb: &Bulb, status: &mut BulbStatus) -> Result<Outcome> {
        let BulbSpec { task, value, .. } = &bulb.spec;
        *status = BulbStatus { task: task.clone(), lit: true };
        match &**task {
            "fail" => return Err("as planned".into()),
            "fail for good" => return Err(Error::permanent("as planned")),
            "panic" => panic!("as planned"),
            "wait" => return Ok(Outcome::after(Duration::from_secs(3600))),
            "ask" => _ = ask(value).await?,
            "map" => self.apply_map(bulb, &format!("{}{value}", self.color)).await?,
            "changing map" => self.apply_map(bulb, &format!("{:?}", SystemTime::now())).await?,
            "bulb" => {
                let spec = BulbSpec { volts: Some(230), ..BulbSpec::default() };
                let child = Bulb::new(&format!("{}-child", bulb.name_any()), spec);
                self.bulbs.create_or_update(bulb, child, |_| {}).await?;
            }
            "same label" => self.set_label(bulb).await?,
            "events" => {
                (0..30).for_each(|n| self.recorder.record(bulb, Event::normal("Many", n.to_string())));
            }
            _ => {}
        }
        Ok(Outcome::done())
    }
}

impl Bulbs {
    async fn apply_map(&self, bulb: &Bulb, color: &str) -> Result<()> {
        let metadata = json!({"name": bulb.name_any(), "labels": {"color": ""}});
        let map = json!({"metadata": metadata, "data": {"color": color}});
        self.maps.apply(bulb, serde_json::from_value(map)?).await?;
        Ok(())
    }

    async fn set_label(&self, bulb: &Bulb) -> Result<()> {
        let bulbs: Api<Bulb> = Api::namespaced(self.client.clone(), &bulb.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({"metadata": {"labels": {"same": ""}}}));
        bulbs.patch(&bulb.name_any(), &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

/// A controller whose passes end at their deadline.
fn endless(cx: &Context) -> Result<Controller> {
    let build = Controller::selected::<ConfigMap>(cx, selection().label(LABEL, "yes")).name("endless");
    Ok(build.deadline(Duration::from_millis(500)).reconciler(Endless).build())
}

struct Endless;

impl ReconcileKind for Endless {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        pending().await
    }
}
