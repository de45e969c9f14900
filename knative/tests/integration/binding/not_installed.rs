//! A webhook whose Kind of bindings the API server does not serve.

use reknit_apis::{Reference, kind};
use reknit_knative::{Bindable, PodSpecable};
use serde::{Deserialize, Serialize};

use super::*;

/// A binding whose CustomResourceDefinition no test installs.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "absent.reknit.dev", version = "v1", kind = "Ghost", namespaced, status = "DuckStatus")]
struct GhostSpec {
    subject: Reference,
}

kind!(Ghost { status: DuckStatus, conditions: knative(["Available"]) });

impl Bindable for Ghost {
    const CONDITION: &'static str = "Available";

    fn subject(&self) -> Reference {
        self.spec.subject.clone()
    }

    fn bind(&self, _: &DuckStatus, _: &mut PodSpecable) {}

    fn unbind(&self, _: &mut PodSpecable) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_are_stored_while_the_kind_of_the_bindings_is_not_installed() {
    let fixture = Fixture::new().await;
    let ghosts =
        |cx: &Context| Ok(Webhook::new("ghosts.reknit.dev").mutator(BindingMutator::of::<Ghost>(cx)));
    let _server = fixture.plane.serve_webhook(&fixture.namespace, ghosts).await.unwrap();
    let deployments = fixture.api::<Deployment>();
    let web = serde_json::from_value(deployment("web")).unwrap();
    eventually("the Deployment to be stored", TIMEOUT, async || {
        deployments.create(&PostParams::default(), &web).await.map_err(|error| error.to_string())
    })
    .await;
    let scaled = Patch::Merge(json!({"spec": {"replicas": 1}}));
    deployments.patch("web", &PatchParams::default(), &scaled).await.unwrap();
}
