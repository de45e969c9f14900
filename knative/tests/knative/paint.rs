//! A binding that sets the environment variable `COLOR` in the containers of its subjects.

use k8s_openapi::api::core::v1::EnvVar;
use reknit_apis::{DuckStatus, Reference, kind};
use reknit_knative::{Bindable, BindingSpec, PodSpecable};
use serde::{Deserialize, Serialize};

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Paint", namespaced, status = "DuckStatus")]
pub(crate) struct PaintSpec {
    #[serde(flatten)]
    pub(crate) binding: BindingSpec,
    pub(crate) color: String,
}

kind!(Paint { status: DuckStatus, conditions: knative(["Available"]) });

impl Bindable for Paint {
    const CONDITION: &'static str = "Available";

    fn subject(&self) -> Reference {
        self.spec.binding.subject.clone()
    }

    fn bind(&self, _: &DuckStatus, subject: &mut PodSpecable) {
        for container in subject.containers_mut() {
            let color =
                EnvVar { name: "COLOR".into(), value: Some(self.spec.color.clone()), value_from: None };
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
