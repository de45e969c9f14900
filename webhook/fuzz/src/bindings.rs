//! A Kind of bindings that sets an environment variable in the pods of Deployments.

use k8s_openapi::api::core::v1::EnvVar;
use kube::{Client, client::Body};
use reknit_apis::{DuckStatus, Reference, kind};
use reknit_injection::Context;
use reknit_knative::{Bindable, BindingMutator, PodSpecable};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "fuzz.reknit.dev", version = "v1", kind = "Paint", namespaced, status = "DuckStatus")]
struct PaintSpec {
    subject: Reference,
}

kind!(Paint { status: DuckStatus, conditions: knative(["Available"]) });

impl Bindable for Paint {
    const CONDITION: &'static str = "Available";

    fn subject(&self) -> Reference {
        self.spec.subject.clone()
    }

    fn bind(&self, _: &DuckStatus, subject: &mut PodSpecable) {
        for container in subject.containers_mut() {
            let color = EnvVar { name: "COLOR".into(), value: Some("red".into()), value_from: None };
            container.env.get_or_insert_default().push(color);
        }
    }

    fn unbind(&self, subject: &mut PodSpecable) {
        for container in subject.containers_mut() {
            container.env.iter_mut().for_each(|env| env.retain(|variable| variable.name != "COLOR"));
            container.env.take_if(|env| env.is_empty());
        }
    }
}

/// The mutator of two bindings, of which one is in another namespace than the reviews. Must be called within a runtime.
pub(crate) fn mutator() -> BindingMutator {
    let paint = |namespace: &str| {
        let subject = json!({"apiVersion": "apps/v1", "kind": "Deployment", "selector": {}});
        json!({"apiVersion": "fuzz.reknit.dev/v1", "kind": "Paint",
            "metadata": {"name": "red", "namespace": namespace, "uid": format!("uid-{namespace}")},
            "spec": {"subject": subject}})
    };
    let unreachable = tower::service_fn(|_: http::Request<Body>| async {
        Err::<http::Response<Body>, _>(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
    });
    let cx = Context::preloaded(
        "fuzz",
        Client::new(unreachable, "default"),
        ["default", "secret"].map(paint).into(),
    );
    BindingMutator::of::<Paint>(&cx)
}
