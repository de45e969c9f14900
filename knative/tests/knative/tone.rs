//! A binding that sets an environment variable of any name in the containers of its subjects.

use k8s_openapi::api::core::v1::EnvVar;
use reknit_apis::{DuckStatus, Reference, kind};
use reknit_injection::Context;
use reknit_knative::{Bindable, Binder, BindingSpec, PodSpecable};
use reknit_reconciler::{Controller, FinalizeKind, Kinds, Outcome, ReconcileKind, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Tone", namespaced, status = "DuckStatus")]
pub(crate) struct ToneSpec {
    #[serde(flatten)]
    pub(crate) binding: BindingSpec,
    /// The name of the variable.
    pub(crate) variable: String,
}

kind!(Tone { status: DuckStatus, conditions: knative(["Available"]) });

impl Bindable for Tone {
    const CONDITION: &'static str = "Available";

    fn subject(&self) -> Reference {
        self.spec.binding.subject.clone()
    }

    fn bind(&self, _: &DuckStatus, subject: &mut PodSpecable) {
        for container in subject.containers_mut() {
            let name = self.metadata.name.clone();
            let tone = EnvVar { name: self.spec.variable.clone(), value: name, value_from: None };
            container.env.get_or_insert_default().push(tone);
        }
    }

    fn unbind(&self, subject: &mut PodSpecable) {
        for container in subject.containers_mut() {
            let variables = &mut container.env;
            variables.iter_mut().for_each(|env| env.retain(|variable| variable.name != self.spec.variable));
            variables.take_if(|env| env.is_empty());
        }
    }
}

/// A binding of this name that sets this variable in the Deployment `web` to its own name.
pub(crate) fn tone(name: &str, variable: &str) -> Value {
    let subject = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    json!({
        "apiVersion": "tests.reknit.dev/v1", "kind": "Tone", "metadata": {"name": name},
        "spec": {"variable": variable, "subject": subject},
    })
}

/// The controller of Tones.
#[expect(clippy::unnecessary_wraps, reason = "it is the constructor of a controller")]
pub(crate) fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Tone>(cx);
    let binder = Binder::new(&mut build, Kinds::of([("apps", "deployments")]));
    Ok(build.reconciler(Reconciler(binder)).finalizing().build())
}

struct Reconciler(Binder<Tone>);

impl ReconcileKind for Reconciler {
    type Kind = Tone;
    async fn reconcile_kind(&self, tone: &Tone, status: &mut DuckStatus) -> Result<Outcome> {
        self.0.bind(tone, status).await?;
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Reconciler {
    async fn finalize_kind(&self, tone: &Tone, _: &mut DuckStatus) -> Result<Outcome> {
        self.0.unbind(tone).await?;
        Ok(Outcome::done())
    }
}
