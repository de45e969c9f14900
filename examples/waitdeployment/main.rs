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
use reknit::{injection::Clock, prelude::*, sharedmain::NamespaceFlag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::target::Timeout;
use self::{
    probes::{ProbeResult, Probes},
    target::Target,
};

const API_VERSION: &str = "demo.reknit.dev/v1alpha1";
const KIND: &str = "Waitdeployment";
const CONDITION: &str = "ProbeSucceeded";

/// A Deployment that waits. `spec` and `status` are those of a Deployment, and `waitProbe` is a field beside them.
/// kube's derive cannot express that.
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
    /// The address that the Deployment waits for.
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
    let mut build = Controller::of::<Waitdeployment>(cx);
    let (deployments, probes) = (build.owns(), Probes::new(build.per_key(), build.queue()));
    Ok(build.reconciler(Reconciler { deployments, probes, clock: cx.get() }).build())
}

struct Reconciler {
    deployments: Owned<Deployment>,
    probes: Probes,
    clock: Clock,
}

/// Readiness to apply the Deployment.
enum Readiness {
    Ready,
    /// There is no result yet. The probe enqueues the key when there is one.
    Probing,
    NotReady {
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
        match self.readiness(object) {
            Readiness::Ready => self.apply_deployment(object, status).await,
            Readiness::Probing if has_failure_of(status, address) => Ok(Outcome::skip()),
            Readiness::Probing => {
                report_waiting(status, "Probing", format!("connecting to {address}"), self.clock.now())
            }
            Readiness::NotReady { reason, message } => {
                report_waiting(status, reason, message, self.clock.now())
            }
        }
    }
}

impl Reconciler {
    /// Returns the result of the probe, which is started if it does not run. An existing Deployment is ready without a
    /// probe.
    fn readiness(&self, object: &Waitdeployment) -> Readiness {
        let address = &object.wait_probe.address;
        if self.deployments.of(object).any(|deployment| deployment.name_any() == object.name_any()) {
            return Readiness::Ready;
        }
        let target = match Target::parse(&object.wait_probe) {
            Ok(target) => target,
            Err(problem) => {
                self.probes.forget(&Key::of(object));
                return Readiness::NotReady {
                    reason: "InvalidProbe",
                    message: format!("cannot probe {address:?}: {problem}"),
                };
            }
        };
        match self.probes.result(Key::of(object), target) {
            None => Readiness::Probing,
            Some(ProbeResult::Connected) => Readiness::Ready,
            Some(ProbeResult::Failed(cause)) => {
                let message = format!("{}{cause}", failure_prefix(address));
                Readiness::NotReady { reason: "ProbeFailed", message }
            }
        }
    }

    /// Applies the Deployment and mirrors its status.
    async fn apply_deployment(
        &self,
        object: &Waitdeployment,
        status: &mut DeploymentStatus,
    ) -> Result<Outcome> {
        let condition = success_condition(status, &object.wait_probe.address, self.clock.now());
        set_condition(status, condition.clone());
        let metadata = ObjectMeta { name: object.metadata.name.clone(), ..ObjectMeta::default() };
        let desired = Deployment { metadata, spec: Some(object.spec.clone()), status: None };
        let applied = self.deployments.apply(object, desired).await;
        if let Err(taken @ NotApplied::Taken { .. }) = applied {
            // The address is probed again once the name is free.
            self.probes.forget(&Key::of(object));
            return Err(Error::permanent(taken).reason("ErrResourceExists"));
        }
        let deployment = applied?;
        self.probes.forget(&Key::of(object));
        *status = mirrored_status(object, &deployment, status.observed_generation);
        set_condition(status, condition);
        Ok(Outcome::done())
    }
}

/// Returns the Deployment's status, with an `observedGeneration` of the Waitdeployment: its current generation once the
/// Deployment's own generation is observed, and until then the previous value.
fn mirrored_status(
    object: &Waitdeployment,
    deployment: &Deployment,
    previous_generation: Option<i64>,
) -> DeploymentStatus {
    let status = deployment.status.clone().unwrap_or_default();
    let is_observed = status.observed_generation == deployment.metadata.generation;
    let observed_generation = if is_observed { object.metadata.generation } else { previous_generation };
    DeploymentStatus { observed_generation, ..status }
}

/// Replaces the status with the reason why there is no Deployment yet.
fn report_waiting(
    status: &mut DeploymentStatus,
    reason: &str,
    message: String,
    now: Timestamp,
) -> Result<Outcome> {
    let condition = new_condition(status, "False", reason, message, now);
    *status = DeploymentStatus::default();
    set_condition(status, condition);
    Ok(Outcome::done())
}

/// The start of the message of a failed probe of this address.
fn failure_prefix(address: &str) -> String {
    format!("cannot connect to {address}: ")
}

/// Returns true if the status contains a failed probe of this address. It stays until there is a new result.
fn has_failure_of(status: &DeploymentStatus, address: &str) -> bool {
    let message = current_condition(status).and_then(|condition| condition.message.as_deref());
    message.is_some_and(|message| message.starts_with(&failure_prefix(address)))
}

/// Returns the condition of a successful probe. An existing one is kept, even if `waitProbe` has changed.
fn success_condition(status: &DeploymentStatus, address: &str, now: Timestamp) -> DeploymentCondition {
    match current_condition(status) {
        Some(existing) if existing.status == "True" => existing.clone(),
        _ => new_condition(status, "True", "Connected", format!("connected to {address}"), now),
    }
}

fn current_condition(status: &DeploymentStatus) -> Option<&DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == CONDITION)
}

/// Builds a condition. It keeps `lastTransitionTime` if the value is the same as before, and `lastUpdateTime` if
/// nothing has changed.
fn new_condition(
    status: &DeploymentStatus,
    value: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> DeploymentCondition {
    let previous = current_condition(status).filter(|previous| previous.status == value);
    let mut condition = DeploymentCondition {
        type_: CONDITION.into(),
        status: value.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_transition_time: previous
            .and_then(|previous| previous.last_transition_time.clone())
            .or(Some(Time(now))),
        last_update_time: previous.and_then(|previous| previous.last_update_time.clone()),
    };
    if previous != Some(&condition) {
        condition.last_update_time = Some(Time(now));
    }
    condition
}

/// Replaces the condition in the status.
fn set_condition(status: &mut DeploymentStatus, condition: DeploymentCondition) {
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|other| other.type_ != CONDITION);
    conditions.push(condition);
}

/// The program: its controllers and flags.
pub fn program() -> Main {
    Main::new("waitdeployment").flags::<NamespaceFlag>().controller(controller).plannable()
}

fn main() -> ExitCode {
    program().run()
}
