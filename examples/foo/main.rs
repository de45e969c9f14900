//! Keeps a Deployment of nginx for each Foo.

use std::{collections::BTreeMap, process::ExitCode};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{Container, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{CustomResource, ResourceExt, api::ObjectMeta};
use reknit::{prelude::*, sharedmain::NamespaceFlag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The Deployment to create.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(
    group = "samplecontroller.k8s.io",
    version = "v1alpha1",
    kind = "Foo",
    plural = "foos",
    namespaced,
    status = "FooStatus",
    annotation("api-approved.kubernetes.io", "unapproved, experimental-only"),
    validation = Rule::new("size(self.metadata.name) <= 63").message("the name becomes a label: 63 bytes at most"),
    printcolumn = r#"{"name": "Deployment", "type": "string", "jsonPath": ".spec.deploymentName"}"#,
    printcolumn = r#"{"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"}"#,
    printcolumn = r#"{"name": "Available", "type": "integer", "jsonPath": ".status.availableReplicas"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct FooSpec {
    /// The name of the Deployment.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub deployment_name: String,
    /// The number of its pods.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 10))]
    pub replicas: i32,
}

fn default_replicas() -> i32 {
    1
}

/// The state of the Deployment.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FooStatus {
    /// The number of its available pods.
    #[serde(default)]
    pub available_replicas: i32,
}

kind!(Foo { status: FooStatus });

/// Reconciles Foos, and owns Deployments.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Foo>(cx);
    let deployments = build.owns();
    Ok(build.reconciler(Reconciler { deployments }).build())
}

struct Reconciler {
    deployments: Owned<Deployment>,
}

impl ReconcileKind for Reconciler {
    type Kind = Foo;

    async fn reconcile_kind(&self, object: &Foo, status: &mut FooStatus) -> Result<Outcome> {
        let applied = self.deployments.apply(object, desired_deployment(object)).await;
        let deployment = applied.map_err(|error| apply_error(object, error))?;
        let available = deployment.status.as_ref().and_then(|status| status.available_replicas);
        status.available_replicas = available.unwrap_or_default();
        Ok(Outcome::done().event(Event::normal("Synced", "Foo synced successfully")))
    }
}

/// If the name belongs to another Deployment, the user has to fix it: the error is permanent, with a reason for its
/// event.
fn apply_error(object: &Foo, error: NotApplied) -> Error {
    let NotApplied::Taken { .. } = error else { return error.into() };
    let name = &object.spec.deployment_name;
    Error::permanent(format!("Resource {name:?} already exists and is not managed by Foo"))
        .reason("ErrResourceExists")
}

fn desired_deployment(object: &Foo) -> Deployment {
    let labels = BTreeMap::from([("app".into(), "nginx".into()), ("controller".into(), object.name_any())]);
    let nginx =
        Container { name: "nginx".into(), image: Some("nginx:latest".into()), ..Container::default() };
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels.clone()), ..ObjectMeta::default() }),
        spec: Some(PodSpec { containers: vec![nginx], ..PodSpec::default() }),
    };
    Deployment {
        metadata: ObjectMeta {
            name: Some(object.spec.deployment_name.clone()),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(object.spec.replicas),
            selector: LabelSelector { match_labels: Some(labels), ..LabelSelector::default() },
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// The program: its controllers and flags.
pub fn program() -> Main {
    Main::new("foo").flags::<NamespaceFlag>().controller(controller).plannable()
}

fn main() -> ExitCode {
    program().run()
}
