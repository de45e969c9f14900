//! A process with Lamps of which some fail, wait or hang, and with half of the buckets.
use std::{collections::BTreeMap, error::Error as StdError, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Service},
};
use kube::{CustomResource, CustomResourceExt, ResourceExt};
use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts};
use reknit_apis::kind;
use reknit_apiserver::ApiServer;
use reknit_injection::{
    Config, Context, FromConfigMap, Shutdown, ShutdownTrigger, internal::Recordings, select,
};
use reknit_leadership::internal::{BucketWriter, elected};
use reknit_reconciler::{Controller, Error, Outcome, Owned, ReconcileKind, Result, Run, Tracked};
use reknit_testing::eventually;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use super::{Console, Running};

/// A value in the spec of each Lamp and in each ConfigMap.
pub(super) const SECRET: &str = "Xyzzy-4711";

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
struct LampSpec {
    color: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct LampStatus {
    #[serde(default)]
    conditions: Vec<LampCondition>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LampCondition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
    last_transition_time: String,
}

kind!(Lamp { status: LampStatus });

/// The settings of the controller.
#[derive(Default)]
struct Wiring;

impl FromConfigMap for Wiring {
    const NAME: &'static str = "config-wiring";

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn StdError + Send + Sync>> {
        data.get("volts").map(|volts| volts.parse::<u32>()).transpose()?;
        Ok(Self)
    }
}

/// Of ten Lamps, one fails and five are reconciled again later. Of four hundred, one hangs, one is in a storm, and one fails for
/// good.
struct Lighter {
    maps: Owned<ConfigMap>,
    switches: Tracked<Service>,
}

impl ReconcileKind for Lighter {
    type Kind = Lamp;

    async fn reconcile_kind(&self, lamp: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        let name = lamp.name_any();
        let number: usize = name.trim_start_matches("lamp-").parse().unwrap_or_default();
        let _ = self.switches.get(lamp, &name.replace("lamp", "switch"));
        match number % 10 {
            _ if number % 400 == 7 => std::future::pending().await,
            _ if number % 400 == 12 => return Ok(Outcome::after(Duration::from_millis(1))),
            _ if number % 400 == 17 => return Err(Error::permanent(format!("{name} has no bulb"))),
            3 => {
                return Err(
                    format!("failed to switch on {name}: tcp connect error: connection refused").into()
                );
            }
            4 | 5 | 6 | 8 | 9 => return Ok(Outcome::after(Duration::from_secs(60 + number as u64))),
            _ => {}
        }
        let map = json!({"metadata": {"name": name}, "data": {"color": SECRET}});
        self.maps.apply(lamp, serde_json::from_value(map)?).await?;
        status.conditions = vec![LampCondition {
            r#type: "Ready".into(),
            status: "True".into(),
            reason: "SwitchedOn".into(),
            message: "the lamp is on".into(),
            last_transition_time: "2026-11-26T12:00:00Z".into(),
        }];
        Ok(Outcome::done())
    }
}

fn lease(bucket: usize, holder: &str) -> Lease {
    let lease = json!({
        "metadata": {"name": format!("lights.lamps.demo.reknit.dev.{bucket:02}-of-02"), "namespace": "shop"},
        "spec": {"holderIdentity": holder, "leaseTransitions": 3, "renewTime": "2026-11-26T12:00:00.000000Z"},
    });
    serde_json::from_value(lease).unwrap()
}

pub(super) struct Process {
    pub(super) console: Console,
    pub(super) server: ApiServer,
    pub(super) recordings: Recordings,
    _stop: ShutdownTrigger,
    _buckets: Vec<BucketWriter>,
}

impl Process {
    /// Starts a process with this number of Lamps.
    pub(super) async fn start(lamps: usize) -> Self {
        Self::start_on(ApiServer::new(), lamps).await
    }

    pub(super) async fn start_on(server: ApiServer, lamps: usize) -> Self {
        server.insert(&Lamp::crd());
        for number in 1..=lamps {
            let name = format!("lamp-{number:04}");
            let mut lamp = Lamp::new(&name, LampSpec { color: SECRET.into() });
            lamp.metadata.namespace = Some("shop".into());
            server.insert(&lamp);
        }
        let registry = prometheus::Registry::new();
        let builder = Context::builder("lights", server.client()).system_namespace(Some("shop".into()));
        let cx = builder.metrics(registry.clone()).build();
        let mut build = Controller::of::<Lamp>(&cx);
        let _: Config<Wiring> = build.config();
        let (maps, switches) = (build.owns(), build.track());
        let controller = build.workers(4).reconciler(Lighter { maps, switches }).build();
        let names = ["00", "01"].map(|n| format!("lights.lamps.demo.reknit.dev.{n}-of-02").into());
        let (leadership, buckets) = elected(names.into());
        buckets[1].follow("lights-7c9f-b_2");
        for (bucket, holder) in ["lights-7c9f-a_1", "lights-7c9f-b_2"].into_iter().enumerate() {
            server.insert(&lease(bucket, holder));
        }
        let leases = cx.informer::<Lease>(select().namespace("shop"));
        let health = controller.health();
        let console = Console::new("lights", "0.1.0", Some("lights-7c9f-a"), registry.clone());
        console.set_running(Running::new(
            vec![(health, leadership.clone())],
            cx.informers(),
            Some((leases, "shop".into())),
            cx.get(),
            cx.get(),
        ));
        buckets[0].lead(Instant::now() + Duration::from_secs(3600), "a test");
        add_webhook(&registry);
        let (trigger, stop) = Shutdown::new();
        let run = Run {
            leadership: reknit_leadership::Leadership::always(),
            stop,
            drain: Duration::ZERO,
            workers: None,
        };
        cx.informers().start();
        tokio::spawn(controller.run(run));
        Self { console, server, recordings: cx.get(), _stop: trigger, _buckets: buckets }
    }

    /// Waits until this number of Lamps have had their first pass, but for those that hang.
    pub(super) async fn wait_until_settled(&self, lamps: usize) {
        eventually("each Lamp to have a pass", Duration::from_secs(60), async || {
            let passes = super::json(self, "passes").await;
            let mut keys: Vec<_> =
                passes["finished"].as_array().unwrap().iter().map(|pass| pass["key"].to_string()).collect();
            keys.sort();
            keys.dedup();
            if keys.len() + lamps / 400 + 1 >= lamps { Ok(()) } else { Err(keys.len()) }
        })
        .await;
    }
}

/// Registers metrics of a webhook that has refused three requests.
fn add_webhook(registry: &prometheus::Registry) {
    let (path, in_flight) = ("/defaulting", "controller_runtime_webhook_requests_in_flight");
    let in_flight = IntGaugeVec::new(Opts::new(in_flight, "-"), &["webhook"]).unwrap();
    let requests = Opts::new("controller_runtime_webhook_requests_total", "-");
    let requests = IntCounterVec::new(requests, &["webhook", "code"]).unwrap();
    let answers = Opts::new("controller_runtime_webhook_admission_responses_total", "-");
    let answers = IntCounterVec::new(answers, &["webhook", "allowed"]).unwrap();
    let expiry = Opts::new("reknit_webhook_certificate_expiry_seconds", "-");
    let expiry = GaugeVec::new(expiry, &[]).unwrap();
    in_flight.with_label_values(&[path]).set(1);
    requests.with_label_values(&[path, "200"]).inc_by(1200);
    answers.with_label_values(&[path, "true"]).inc_by(1197);
    answers.with_label_values(&[path, "false"]).inc_by(3);
    expiry.with_label_values::<&str>(&[]).set(6.2e6);
    registry.register(Box::new(in_flight)).unwrap();
    registry.register(Box::new(requests)).unwrap();
    registry.register(Box::new(answers)).unwrap();
    registry.register(Box::new(expiry)).unwrap();
}
