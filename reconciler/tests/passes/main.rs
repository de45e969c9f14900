//! Single passes through the public API, against an in-memory API server.

#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod children;
mod children_any;
mod children_by_name;
mod determinism;
mod ducks;
mod events;
mod finalizers;
mod limits;
mod metav1;
mod pause;
mod references;
mod roles;
mod status;
mod tracking;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use reknit_apis::{DuckStatus, KRShaped, kind};
use reknit_injection::Context;
use reknit_reconciler::{
    Controller, FinalizeKind, Key, ObserveKind, Outcome, ReconcileKind, Result, RoleBuilder,
};
use serde::{Deserialize, Serialize};

/// A Kind with defaults, conditions and a status.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
pub(crate) struct LampSpec {
    #[serde(default)]
    pub(crate) watts: Option<u32>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
pub(crate) struct LampStatus {
    #[serde(flatten)]
    pub(crate) duck: DuckStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lit: Option<bool>,
}

kind!(Lamp {
    status: LampStatus,
    conditions: knative(duck),
    defaults: |lamp| lamp.spec.watts = lamp.spec.watts.or(Some(40)),
});

pub(crate) const FINALIZER: &str = "lamps.demo.reknit.dev";

impl LampStatus {
    /// Sets `lit` and marks the lamp Ready.
    pub(crate) fn light(&mut self) {
        self.lit = Some(true);
        Lamp::CONDITIONS.manage(self).mark_true("Ready");
    }
}

/// A lamp named `x` of generation 1.
pub(crate) fn lamp() -> Lamp {
    let mut lamp = Lamp::new("x", LampSpec { watts: None });
    lamp.metadata.namespace = Some("default".into());
    lamp.metadata.generation = Some(1);
    lamp.metadata.uid = Some("uid-x".into());
    lamp
}

/// A terminating lamp with these finalizers.
pub(crate) fn terminating(finalizers: &[&str]) -> Lamp {
    let mut lamp = lamp();
    lamp.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
    lamp.metadata.deletion_grace_period_seconds = Some(0);
    lamp.metadata.finalizers = Some(finalizers.iter().map(|&name| name.into()).collect());
    lamp
}

pub(crate) fn key() -> Key {
    Key::new("default", "x")
}

/// Calls the same closure in every role: reconcile, finalize and observe.
pub(crate) struct ClosureReconciler<F>(pub(crate) F);

/// The signature of the closure of [`ClosureReconciler`].
pub(crate) trait PassFn:
    Fn(&Lamp, &mut LampStatus) -> Result<Outcome> + Send + Sync + 'static
{
}
impl<F: Fn(&Lamp, &mut LampStatus) -> Result<Outcome> + Send + Sync + 'static> PassFn for F {}

impl<F: PassFn> ReconcileKind for ClosureReconciler<F> {
    type Kind = Lamp;
    async fn reconcile_kind(&self, lamp: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        (self.0)(lamp, status)
    }
}

impl<F: PassFn> FinalizeKind for ClosureReconciler<F> {
    async fn finalize_kind(&self, lamp: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        (self.0)(lamp, status)
    }
}

impl<F: PassFn> ObserveKind for ClosureReconciler<F> {
    async fn observe_kind(&self, lamp: &Lamp) -> Result<Outcome> {
        (self.0)(lamp, &mut LampStatus::default())
    }
}

pub(crate) fn builder<F: PassFn>(cx: &Context, pass: F) -> RoleBuilder<ClosureReconciler<F>> {
    Controller::of::<Lamp>(cx).reconciler(ClosureReconciler(pass))
}

/// The constructor of a controller that only reconciles.
pub(crate) fn reconciling<F: PassFn>(pass: F) -> impl FnOnce(&Context) -> Result<Controller> {
    |cx| Ok(builder(cx, pass).build())
}

/// The constructor of a controller that reconciles and finalizes.
pub(crate) fn finalizing<F: PassFn>(pass: F) -> impl FnOnce(&Context) -> Result<Controller> {
    |cx| Ok(builder(cx, pass).finalizing().build())
}

/// A pass that lights the lamp.
pub(crate) fn light(_: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
    status.light();
    Ok(Outcome::done())
}
