//! A Kind whose CustomResourceDefinition accepts every object.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, CustomResource, CustomResourceExt, api::DynamicObject, discovery::ApiResource};
use reknit::{prelude::*, testing::eventually};
use reknit_samples::AddressableServiceStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{objects::Objects, wait::TIMEOUT};

/// The fields that the Rust type knows. The API server also stores objects with unknown fields or wrong types.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Loose", plural = "loose", namespaced)]
#[kube(status = "AddressableServiceStatus")]
pub(crate) struct LooseSpec {
    pub replicas: i32,
}

kind!(Loose { status: AddressableServiceStatus, conditions: knative() });

/// The CustomResourceDefinition. Its schema neither validates nor prunes.
pub(crate) fn crd() -> CustomResourceDefinition {
    let anything =
        json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let mut crd = Loose::crd();
    crd.spec.versions[0].schema = serde_json::from_value(anything).expect("a schema");
    crd
}

/// An Api of the objects as JSON, which also reads and writes fields that the Rust type does not know.
pub(crate) fn dynamic_api(objects: &Objects) -> Api<DynamicObject> {
    Api::namespaced_with(objects.client.clone(), &objects.namespace, &ApiResource::erase::<Loose>(&()))
}

/// Returns the constructor of a controller that marks each object that it reconciles, for tests that look for the mark:
/// it sets `Ready` to False with the message `Service "seen" wasn't found.`
pub(crate) fn marking_controller(namespace: &str) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let selection = select().namespace(namespace);
    move |cx| Ok(Controller::selected::<Loose>(cx, selection).reconciler(MarkingReconciler).build())
}

/// Waits until the controller has observed the latest generation, and returns the object.
pub(crate) async fn wait_until_observed(objects: &Objects, name: &str) -> DynamicObject {
    let api = dynamic_api(objects);
    eventually(format!("{name} was reconciled"), TIMEOUT, async || {
        let object = api.get(name).await.ok()?;
        let observed = object.data["status"]["observedGeneration"].as_i64();
        (observed.is_some() && observed == object.metadata.generation).then_some(object)
    })
    .await
}

struct MarkingReconciler;

impl ReconcileKind for MarkingReconciler {
    type Kind = Loose;

    async fn reconcile_kind(&self, _: &Loose, status: &mut AddressableServiceStatus) -> Result<Outcome> {
        status.mark_service_unavailable("seen");
        Ok(Outcome::done())
    }
}
