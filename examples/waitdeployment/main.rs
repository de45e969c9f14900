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

/// A Deployment that waits. `spec` and `status` are those of a Deployment, with `waitProbe` beside them, which kube's derive
/// cannot express.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Waitdeployment {
    /// The group and version.
    #[serde(default = "api_version")]
    pub api_version: String,
    /// The Kind.
    #[serde(default = "kind")]
    pub kind: String,
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// The address for which the Deployment waits.
    pub wait_probe: WaitProbe,
    /// The spec of the Deployment.
    pub spec: DeploymentSpec,
    /// The status of the Deployment, with the condition `ProbeSucceeded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DeploymentStatus>,
}

fn api_version() -> String {
    API_VERSION.into()
}

fn kind() -> String {
    KIND.into()
}

/// A probe that has to succeed before the Deployment is created.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct WaitProbe {
    /// The address of a TCP connection: host:port, with an IPv6 address in brackets.
    pub address: String,
    /// The time limit of one attempt, above zero and at most a minute: a duration such as 2s, or a number of nanoseconds.
    /// The default is 5s.
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

/// Reconciles Waitdeployments and owns Deployments. The probes enqueue keys.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::selected::<Waitdeployment>(cx, cx.get::<NamespaceFlag>().selection());
    let (deployments, probes) = (build.owns(), Probes::new(build.per_key(), build.queue()));
    Ok(build.reconciler(Reconciler { deployments, probes }).build())
}

struct Reconciler {
    deployments: Owned<Deployment>,
    probes: Probes,
}

/// The result of the probe so far.
enum Probed {
    Connected,
    /// No result yet. The probe enqueues the key when there is one.
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
    /// The result of the probe. A Deployment that exists needs no probe.
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

    /// Applies the Deployment and mirrors its status.
    async fn keep(&self, object: &Waitdeployment, status: &mut DeploymentStatus) -> Result<Outcome> {
        let condition = succeeded(status, &object.wait_probe.address);
        set(status, condition.clone());
        let metadata = ObjectMeta { name: object.metadata.name.clone(), ..ObjectMeta::default() };
        let wanted = Deployment { metadata, spec: Some(object.spec.clone()), status: None };
        let applied = self.deployments.apply(object, wanted).await;
        if let Err(taken @ NotApplied::Taken { .. }) = applied {
            self.probes.forget(&Key::of(object)); // the address is probed again once the name is free
            return Err(Error::permanent(taken).reason("ErrResourceExists"));
        }
        let made = applied?;
        self.probes.forget(&Key::of(object));
        *status = mirrored(object, &made, status.observed_generation);
        set(status, condition);
        Ok(Outcome::done())
    }
}

/// The Deployment's status with the generation of the Waitdeployment, which is observed once the Deployment is.
fn mirrored(object: &Waitdeployment, made: &Deployment, before: Option<i64>) -> DeploymentStatus {
    let status = made.status.clone().unwrap_or_default();
    let is_observed = status.observed_generation == made.metadata.generation;
    let observed_generation = if is_observed { object.metadata.generation } else { before };
    DeploymentStatus { observed_generation, ..status }
}

/// Sets the reason why there is no Deployment yet.
fn wait(status: &mut DeploymentStatus, reason: &str, message: String) -> Result<Outcome> {
    let condition = condition(status, "False", reason, message);
    *status = DeploymentStatus::default();
    set(status, condition);
    Ok(Outcome::done())
}

/// The start of the message for an address that does not answer.
fn failing(address: &str) -> String {
    format!("cannot connect to {address}: ")
}

/// Returns true if the status holds a failure of this address, which stays until there is a new result.
fn says_of(status: &DeploymentStatus, address: &str) -> bool {
    let message = current(status).and_then(|condition| condition.message.as_deref());
    message.is_some_and(|message| message.starts_with(&failing(address)))
}

/// The condition of a successful probe. It stays, even if `waitProbe` changes later.
fn succeeded(status: &DeploymentStatus, address: &str) -> DeploymentCondition {
    match current(status) {
        Some(existing) if existing.status == "True" => existing.clone(),
        _ => condition(status, "True", "Connected", format!("connected to {address}")),
    }
}

fn current(status: &DeploymentStatus) -> Option<&DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == CONDITION)
}

/// The condition with the times of the last change of its status and of any part of it.
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
