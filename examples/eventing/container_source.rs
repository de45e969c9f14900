//! The ContainerSource Kind, and its controller, which creates a Deployment of the source and a SinkBinding for it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{CustomResource, ResourceExt, api::ObjectMeta};
use reknit::{
    apis::{Condition, DuckStatus, Reference, child_name, drop_descriptions},
    knative::{BindingSpec, SourceSpec, SourceStatus},
    prelude::*,
    reconciler::{Applied, Recorder},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sink_binding::{SinkBinding, SinkBindingSpec};

/// Runs a container that sends events to a sink.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(
    group = "sources.knative.dev",
    version = "v1",
    kind = "ContainerSource",
    doc = "Runs a container that sends events to a sink.",
    namespaced,
    status = "SourceStatus",
    printcolumn = r#"{"name": "Sink", "type": "string", "jsonPath": ".status.sinkUri"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#
)]
pub struct ContainerSourceSpec {
    /// The sink, and changes to each event.
    #[serde(flatten)]
    pub source: SourceSpec,
    /// The pods of the source.
    #[schemars(transform = drop_descriptions)]
    pub template: PodTemplateSpec,
}

kind!(ContainerSource {
    status: SourceStatus,
    conditions: knative(["SinkBindingReady", "ReceiveAdapterReady"]),
    defaults: ContainerSource::set_spec_defaults,
});

impl ContainerSource {
    /// Sets the namespace of the sink, and names containers without a name after the source.
    fn set_spec_defaults(&mut self) {
        let (name, namespace) = (self.name_any(), self.namespace().unwrap_or_default());
        self.spec.source.sink.set_defaults(&namespace);
        let containers = self.spec.template.spec.iter_mut().flat_map(|spec| &mut spec.containers);
        for (index, container) in containers.enumerate().filter(|(_, container)| container.name.is_empty()) {
            container.name = format!("{name}-{index}");
        }
    }
}

impl Validatable for ContainerSource {
    fn validate(&self, _: &Request) -> FieldError {
        let ContainerSourceSpec { source, template } = &self.spec;
        let has_container = template.spec.as_ref().is_some_and(|spec| !spec.containers.is_empty());
        let containers = if has_container {
            FieldError::none()
        } else {
            FieldError::missing(["template.spec.containers"])
        };
        source.sink.validate().via_field("sink").also(containers).via_field("spec")
    }
}

/// Reconciles ContainerSources. They own Deployments and SinkBindings.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<ContainerSource>(cx);
    let (deployments, sink_bindings, recorder) = (build.owns(), build.owns(), build.recorder());
    Ok(build.reconciler(Reconciler { deployments, sink_bindings, recorder }).build())
}

struct Reconciler {
    deployments: Owned<Deployment>,
    sink_bindings: Owned<SinkBinding>,
    recorder: Recorder,
}

impl ReconcileKind for Reconciler {
    type Kind = ContainerSource;

    async fn reconcile_kind(&self, source: &ContainerSource, status: &mut SourceStatus) -> Result<Outcome> {
        // The SinkBinding exists first, so that the webhook injects into the Deployment before its first pod starts.
        let binding = self.sink_bindings.apply(source, new_sink_binding(source)).await?;
        self.record(source, "SinkBinding", &binding);
        propagate_sink_binding(status, &binding);

        let deployment = self.deployments.apply(source, new_deployment(source)).await?;
        self.record(source, "Deployment", &deployment);
        propagate_deployment(status, &deployment);

        let message = format!("ContainerSource reconciled: {:?}", Key::of(source).to_string());
        Ok(Outcome::done().event(Event::normal("ContainerSourceReconciled", message)))
    }
}

impl Reconciler {
    /// Records an event if the child was created or updated.
    fn record<T: ResourceExt>(&self, source: &ContainerSource, kind: &str, applied: &Applied<T>) {
        let (suffix, action) = match applied {
            Applied::Created(_) => ("Created", "created"),
            Applied::Updated { .. } => ("Updated", "updated"),
            Applied::Unchanged(_) => return,
        };
        let message = format!("{kind} {action} {:?}", applied.name_any());
        self.recorder.record(source, Event::normal(&format!("ContainerSource{kind}{suffix}"), message));
    }
}

/// Takes over the sink of the SinkBinding, and its readiness.
fn propagate_sink_binding(status: &mut SourceStatus, binding: &SinkBinding) {
    let bound = binding.status.clone().unwrap_or_default();
    let ready = bound.duck.condition("Ready").cloned().unwrap_or_default();
    let own = DuckStatus::clone(&status.duck);
    *status = SourceStatus { duck: own, ..bound };
    ContainerSource::CONDITIONS.manage(status).propagate("SinkBindingReady", &ready);
}

/// Takes over the condition `Available` of the Deployment.
fn propagate_deployment(status: &mut SourceStatus, deployment: &Deployment) {
    let conditions = deployment.status.as_ref().and_then(|status| status.conditions.as_deref());
    let available = conditions.unwrap_or_default().iter().find(|condition| condition.type_ == "Available");
    let condition = match available {
        Some(available) => Condition {
            status: available.status.as_str().into(),
            reason: available.reason.clone(),
            message: available.message.clone(),
            ..Condition::default()
        },
        None => Condition {
            reason: Some("DeploymentUnavailable".into()),
            message: Some(format!("The Deployment '{}' is unavailable.", deployment.name_any())),
            ..Condition::default()
        },
    };
    ContainerSource::CONDITIONS.manage(status).propagate("ReceiveAdapterReady", &condition);
}

fn deployment_name(source: &ContainerSource) -> String {
    child_name(&source.name_any(), "-deployment")
}

fn new_sink_binding(source: &ContainerSource) -> SinkBinding {
    let subject = Reference {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        namespace: source.namespace(),
        name: Some(deployment_name(source)),
        selector: None,
    };
    let spec = SinkBindingSpec { source: source.spec.source.clone(), binding: BindingSpec { subject } };
    SinkBinding::new(&child_name(&source.name_any(), "-sinkbinding"), spec)
}

fn new_deployment(source: &ContainerSource) -> Deployment {
    let labels = BTreeMap::from([
        ("sources.knative.dev/source".into(), "container-source-controller".into()),
        ("sources.knative.dev/containerSource".into(), source.name_any()),
    ]);
    let mut template = source.spec.template.clone();
    let metadata = template.metadata.get_or_insert_default();
    metadata.labels.get_or_insert_default().extend(labels.clone());
    let all_labels = metadata.labels.clone();
    Deployment {
        metadata: ObjectMeta {
            name: Some(deployment_name(source)),
            labels: all_labels,
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            selector: LabelSelector { match_labels: Some(labels), ..LabelSelector::default() },
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}
