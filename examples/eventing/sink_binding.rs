//! The SinkBinding Kind, and its controller, which injects the address of a sink into the pod templates of the
//! subjects.

use k8s_openapi::api::core::v1::{Container, EnvVar};
use kube::CustomResource;
use reknit::{
    apis::Reference,
    knative::{AddressResolver, Bindable, Binder, BindingSpec, PodSpecable, SourceSpec, SourceStatus},
    prelude::*,
    reconciler::Kinds,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::broker::ADDRESSABLE;

/// The environment variables that a SinkBinding sets.
const INJECTED: [&str; 3] = ["K_SINK", "K_CA_CERTS", "K_CE_OVERRIDES"];

/// Tells the containers of the subjects where to send their events.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "sources.knative.dev",
    version = "v1",
    kind = "SinkBinding",
    doc = "Tells the containers of the subjects where to send their events.",
    namespaced,
    status = "SourceStatus",
    printcolumn = r#"{"name": "Sink", "type": "string", "jsonPath": ".status.sinkUri"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#
)]
pub struct SinkBindingSpec {
    /// The sink, and changes to each event.
    #[serde(flatten)]
    pub source: SourceSpec,
    /// The subjects.
    #[serde(flatten)]
    pub binding: BindingSpec,
}

kind!(SinkBinding {
    status: SourceStatus,
    conditions: knative(["Available", "SinkProvided"]),
    defaults: |binding| {
        let namespace = binding.metadata.namespace.clone().unwrap_or_default();
        binding.spec.source.sink.set_defaults(&namespace);
        binding.spec.binding.subject.set_defaults(&namespace);
    },
});

impl Validatable for SinkBinding {
    fn validate(&self, _: &Request) -> FieldError {
        let SinkBindingSpec { source, binding } = &self.spec;
        let subject = binding.subject.validate_within(self.metadata.namespace.as_deref().unwrap_or_default());
        source.sink.validate().via_field("sink").also(subject.via_field("subject")).via_field("spec")
    }
}

impl Bindable for SinkBinding {
    const CONDITION: &'static str = "Available";

    fn subject(&self) -> Reference {
        self.spec.binding.subject.clone()
    }

    fn bind(&self, status: &SourceStatus, subject: &mut PodSpecable) {
        let Some(sink) = &status.sink_uri else { return };
        let overrides = self.spec.source.ce_overrides.as_ref().map(serde_json::to_string);
        let overrides = overrides.and_then(Result::ok).unwrap_or_default();
        for container in subject.containers_mut() {
            set_variable(container, "K_SINK", sink.to_string());
            if let Some(ca_certs) = &status.sink_ca_certs {
                set_variable(container, "K_CA_CERTS", ca_certs.clone());
            }
            set_variable(container, "K_CE_OVERRIDES", overrides.clone());
        }
    }

    fn unbind(&self, subject: &mut PodSpecable) {
        for container in subject.containers_mut() {
            let variables = &mut container.env;
            variables.iter_mut().for_each(|env| env.retain(|one| !INJECTED.contains(&one.name.as_str())));
            variables.take_if(|env| env.is_empty());
        }
    }
}

fn set_variable(container: &mut Container, name: &str, value: String) {
    // The API server stores an empty value as an absent one.
    let value = Some(value).filter(|value| !value.is_empty());
    container.env.get_or_insert_default().push(EnvVar { name: name.into(), value, value_from: None });
}

/// Reconciles SinkBindings, and tracks their sinks and subjects.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<SinkBinding>(cx);
    let workloads =
        [("apps", "deployments"), ("apps", "statefulsets"), ("apps", "daemonsets"), ("batch", "jobs")];
    let sinks = AddressResolver::new(build.track_any(Kinds::of(ADDRESSABLE).or_any()));
    let binder = Binder::new(&mut build, Kinds::of(workloads).or_any());
    Ok(build.reconciler(Reconciler { sinks, binder }).finalizing().build())
}

struct Reconciler {
    sinks: AddressResolver,
    binder: Binder<SinkBinding>,
}

impl ReconcileKind for Reconciler {
    type Kind = SinkBinding;

    async fn reconcile_kind(&self, binding: &SinkBinding, status: &mut SourceStatus) -> Result<Outcome> {
        let sink = self.sinks.resolve(binding, &binding.spec.source.sink).await.inspect_err(|_| {
            let message = "Addressable could not be extracted from destination";
            SinkBinding::CONDITIONS.manage(status).mark_false("Available", "NoAddressable", message);
        })?;
        status.set_sink(&sink);
        SinkBinding::CONDITIONS.manage(status).mark_true("SinkProvided");
        self.binder.bind(binding, status).await?;
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Reconciler {
    async fn finalize_kind(&self, binding: &SinkBinding, _: &mut SourceStatus) -> Result<Outcome> {
        self.binder.unbind(binding).await?;
        Ok(Outcome::done())
    }
}
