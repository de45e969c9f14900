//! Creates a Deployment only once something answers at an address.

mod definition;
mod probes;
mod target;

use std::{borrow::Cow, process::ExitCode};

use k8s_openapi::{
    NamespaceResourceScope,
    api::apps::v1::{Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{Resource, ResourceExt, api::ObjectMeta};
use reknit::{prelude::*, sharedmain::NamespaceFlag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::target::Timeout;
use self::{
    probes::{Answer, Probes},
    target::Target,
};

const API_VERSION: &str = "demo.reknit.dev/v1alpha1";
const KIND: &str = "Waitdeployment";
const CONDITION: &str = "ProbeSucceeded";

/// A Deployment that waits. `spec` and `status` are a Deployment's and `waitProbe` stands beside them, which is what
/// kube's derive has no room for.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Waitdeployment {
    /// Its group and version.
    #[serde(default = "api_version")]
    pub api_version: String,
    /// Its Kind.
    #[serde(default = "kind")]
    pub kind: String,
    /// Its name, and what else every object has.
    pub metadata: ObjectMeta,
    /// What the Deployment waits for.
    pub wait_probe: WaitProbe,
    /// The Deployment's.
    pub spec: DeploymentSpec,
    /// The Deployment's, and the condition `ProbeSucceeded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DeploymentStatus>,
}

fn api_version() -> String {
    API_VERSION.into()
}

fn kind() -> String {
    KIND.into()
}

/// What has to answer before the Deployment is created.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct WaitProbe {
    /// Where a TCP connection has to succeed: host:port, an IPv6 address in brackets.
    pub address: String,
    /// How long one attempt may take, more than nothing and at most a minute: a duration such as 2s, or a number of
    /// nanoseconds. 5s unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,
}

impl Resource for Waitdeployment {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        "demo.reknit.dev".into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        "waitdeployments".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

kind!(Waitdeployment { status: DeploymentStatus });

/// Reconciles Waitdeployments, owns Deployments, and is woken by the probes.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::selected::<Waitdeployment>(cx, cx.get::<NamespaceFlag>().selection());
    let (deployments, probes) = (build.owns(), Probes::new(build.per_key(), build.queue()));
    Ok(build.reconciler(Reconciler { deployments, probes }).build())
}

struct Reconciler {
    deployments: Owned<Deployment>,
    probes: Probes,
}

/// What is known of the probe.
enum Probed {
    Connected,
    /// Nothing yet: the probe wakes the key.
    Trying,
    Not {
        reason: &'static str,
        message: String,
    },
}

impl ReconcileKind for Reconciler {
    type Kind = Waitdeployment;

    async fn reconcile_kind(
        &self,
        object: &Waitdeployment,
        status: &mut DeploymentStatus,
    ) -> Result<Outcome> {
        let address = &object.wait_probe.address;
        match self.probed(object) {
            Probed::Connected => self.keep(object, status).await,
            Probed::Trying if says_of(status, address) => Ok(Outcome::skip()),
            Probed::Trying => wait(status, "Probing", format!("connecting to {address}")),
            Probed::Not { reason, message } => wait(status, reason, message),
        }
    }
}

impl Reconciler {
    /// A Deployment that is there needs no probe any more.
    fn probed(&self, object: &Waitdeployment) -> Probed {
        let address = &object.wait_probe.address;
        if self.deployments.of(object).any(|made| made.name_any() == object.name_any()) {
            return Probed::Connected;
        }
        let target = match Target::of(&object.wait_probe) {
            Ok(target) => target,
            Err(problem) => {
                self.probes.forget(&Key::of(object));
                return Probed::Not {
                    reason: "InvalidProbe",
                    message: format!("cannot probe {address:?}: {problem}"),
                };
            }
        };
        match self.probes.ask(Key::of(object), target) {
            None => Probed::Trying,
            Some(Answer::Connected) => Probed::Connected,
            Some(Answer::Failed(cause)) => {
                Probed::Not { reason: "ProbeFailed", message: format!("{}{cause}", failing(address)) }
            }
        }
    }

    /// Has the Deployment follow the spec, and its status mirrored.
    async fn keep(&self, object: &Waitdeployment, status: &mut DeploymentStatus) -> Result<Outcome> {
        let condition = succeeded(status, &object.wait_probe.address);
        set(status, condition.clone());
        let metadata = ObjectMeta { name: object.metadata.name.clone(), ..ObjectMeta::default() };
        let wanted = Deployment { metadata, spec: Some(object.spec.clone()), status: None };
        let applied = self.deployments.apply(object, wanted).await;
        if let Err(taken @ NotApplied::Taken { .. }) = applied {
            self.probes.forget(&Key::of(object)); // once the name is free, the address is tried again
            return Err(Error::permanent(taken).reason("ErrResourceExists"));
        }
        let made = applied?;
        self.probes.forget(&Key::of(object));
        *status = mirrored(object, &made, status.observed_generation);
        set(status, condition);
        Ok(Outcome::done())
    }
}

/// The Deployment's status, but for the generation, which is the Waitdeployment's own: it is observed once the Deployment
/// that was made of it is.
fn mirrored(object: &Waitdeployment, made: &Deployment, before: Option<i64>) -> DeploymentStatus {
    let status = made.status.clone().unwrap_or_default();
    let is_observed = status.observed_generation == made.metadata.generation;
    let observed_generation = if is_observed { object.metadata.generation } else { before };
    DeploymentStatus { observed_generation, ..status }
}

/// There is no Deployment, and this is why.
fn wait(status: &mut DeploymentStatus, reason: &str, message: String) -> Result<Outcome> {
    let condition = condition(status, "False", reason, message);
    *status = DeploymentStatus::default();
    set(status, condition);
    Ok(Outcome::done())
}

/// The beginning of the message that says why the address does not answer.
fn failing(address: &str) -> String {
    format!("cannot connect to {address}: ")
}

/// Returns true if the status says why this address does not answer: that holds until something else is known.
fn says_of(status: &DeploymentStatus, address: &str) -> bool {
    let message = current(status).and_then(|condition| condition.message.as_deref());
    message.is_some_and(|message| message.starts_with(&failing(address)))
}

/// What was said when the probe succeeded stands, whatever becomes of `waitProbe` later.
fn succeeded(status: &DeploymentStatus, address: &str) -> DeploymentCondition {
    match current(status) {
        Some(stands) if stands.status == "True" => stands.clone(),
        _ => condition(status, "True", "Connected", format!("connected to {address}")),
    }
}

fn current(status: &DeploymentStatus) -> Option<&DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == CONDITION)
}

/// The condition with its times: when its status changed, and when anything of it did.
fn condition(status: &DeploymentStatus, is: &str, reason: &str, message: String) -> DeploymentCondition {
    let now = || Some(Time(Timestamp::now()));
    let before = current(status).filter(|before| before.status == is);
    let mut condition = DeploymentCondition {
        type_: CONDITION.into(),
        status: is.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_transition_time: before.and_then(|before| before.last_transition_time.clone()).or_else(now),
        last_update_time: before.and_then(|before| before.last_update_time.clone()),
    };
    if before != Some(&condition) {
        condition.last_update_time = now();
    }
    condition
}

fn set(status: &mut DeploymentStatus, condition: DeploymentCondition) {
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|other| other.type_ != CONDITION);
    conditions.push(condition);
}

fn main() -> ExitCode {
    Main::new("waitdeployment").flags::<NamespaceFlag>().controller(controller).run()
}
