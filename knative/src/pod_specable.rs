//! The duck type of objects with a pod template.

use k8s_openapi::{
    api::core::v1::{Container, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};

/// The metadata and the pod template of an object of any Kind with `spec.template`: a Deployment, a StatefulSet, a
/// DaemonSet, a Job, or a Service of Knative.
///
/// In Knative's Go library this is the duck type `WithPod`. Other fields of the object are ignored.
///
/// ```
/// use k8s_openapi::api::{apps::v1::Deployment, core::v1::EnvVar};
/// use reknit_knative::PodSpecable;
///
/// fn set_color(deployment: &Deployment) -> serde_json::Result<PodSpecable> {
///     let mut subject: PodSpecable = serde_json::from_value(serde_json::to_value(deployment)?)?;
///     for container in subject.containers_mut() {
///         let color = EnvVar { name: "COLOR".into(), value: Some("blue".into()), ..EnvVar::default() };
///         container.env.get_or_insert_default().push(color);
///     }
///     Ok(subject)
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodSpecable {
    /// The metadata of the object.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The part of the spec that all these Kinds have. An object without it is not a `PodSpecable`.
    pub spec: PodSpecableSpec,
}

/// The spec of a [`PodSpecable`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodSpecableSpec {
    /// The template from which pods are created. An object without it is not a `PodSpecable`.
    pub template: PodTemplateSpec,
}

impl PodSpecable {
    /// Returns the init containers and then the containers of the template.
    pub fn containers_mut(&mut self) -> impl Iterator<Item = &mut Container> {
        let spec = self.spec.template.spec.iter_mut();
        spec.flat_map(|spec| spec.init_containers.iter_mut().flatten().chain(&mut spec.containers))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn init_containers_come_before_containers() {
        let job = json!({"kind": "Job", "spec": {"completions": 1, "template": {"spec": {
            "containers": [{"name": "main"}], "initContainers": [{"name": "setup"}],
        }}}});
        let mut job: PodSpecable = serde_json::from_value(job).unwrap();
        let names: Vec<_> = job.containers_mut().map(|container| container.name.clone()).collect();
        assert_eq!(names, ["setup", "main"]);
    }

    #[test]
    fn an_object_without_a_template_is_not_pod_specable() {
        for object in [json!({"kind": "ConfigMap", "data": {}}), json!({"kind": "Service", "spec": {}})] {
            assert!(serde_json::from_value::<PodSpecable>(object.clone()).is_err(), "{object}");
        }
    }
}
