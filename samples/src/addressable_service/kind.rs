//! The AddressableService Kind, which publishes the address of a Service in its status.

use kube::CustomResource;
use reknit::{knative::Addressable, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Names a Service and publishes its address.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "samples.knative.dev",
    version = "v1alpha1",
    kind = "AddressableService",
    doc = "Names a Service and publishes its address.",
    namespaced,
    status = "AddressableServiceStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "asvc",
    category = "all",
    category = "knative",
    label("app.kubernetes.io/name", "knative-samples"),
    label("app.kubernetes.io/version", "devel"),
    label("samples.knative.dev/release", "devel"),
    label("knative.dev/crd-install", "true"),
    printcolumn = r#"{"name": "Address", "type": "string", "jsonPath": ".status.address.url"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AddressableServiceSpec {
    /// The name of a Service in the same namespace.
    pub service_name: String,
}

/// The state that the controller found.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressableServiceStatus {
    /// The conditions and the observed generation.
    #[serde(flatten)]
    pub duck: DuckStatus,
    /// The address of the Service, while it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
}

kind!(AddressableService { status: AddressableServiceStatus, conditions: knative(duck) });

impl Validatable for AddressableService {
    fn validate(&self, _: &Request) -> FieldError {
        match &*self.spec.service_name {
            "" => FieldError::missing(["serviceName"]).via_field("spec"),
            _ => FieldError::none(),
        }
    }
}

impl AddressableServiceStatus {
    /// Records that the Service does not exist: not ready, and no address.
    pub fn mark_service_unavailable(&mut self, name: &str) {
        self.address = None;
        let message = format!("Service {name:?} wasn't found.");
        AddressableService::CONDITIONS.manage(self).mark_false("Ready", "ServiceUnavailable", message);
    }

    /// Records the address of the Service: ready.
    pub fn mark_service_available(&mut self, address: Addressable) {
        self.address = Some(address);
        AddressableService::CONDITIONS.manage(self).mark_true("Ready");
    }

    /// Records that the object is being deleted: not ready, and no address.
    pub fn mark_terminating(&mut self) {
        self.address = None;
        let message = "The object is being deleted.";
        AddressableService::CONDITIONS.manage(self).mark_false("Ready", "Terminating", message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn available_status() -> AddressableServiceStatus {
        let mut status = AddressableServiceStatus::default();
        let url = "http://web.default.svc.cluster.local".parse().unwrap();
        status.mark_service_available(Addressable { url: Some(url), ..Addressable::default() });
        status
    }

    fn json_without_transition_times(status: &AddressableServiceStatus) -> serde_json::Value {
        let mut status = serde_json::to_value(status).unwrap();
        for condition in status["conditions"].as_array_mut().unwrap() {
            condition.as_object_mut().unwrap().remove("lastTransitionTime");
        }
        status
    }

    #[test]
    fn an_available_service_makes_the_object_ready_and_publishes_its_url() {
        let expected = json!({
            "address": {"url": "http://web.default.svc.cluster.local"},
            "conditions": [{"type": "Ready", "status": "True"}],
        });
        assert_eq!(json_without_transition_times(&available_status()), expected);
    }

    #[test]
    fn an_unavailable_service_clears_the_address_and_sets_the_reason() {
        let mut status = available_status();
        status.mark_service_unavailable("web");
        let not_ready = json!({
            "type": "Ready", "status": "False", "reason": "ServiceUnavailable",
            "message": "Service \"web\" wasn't found.",
        });
        assert_eq!(json_without_transition_times(&status), json!({"conditions": [not_ready]}));
    }

    #[test]
    fn a_terminating_object_has_no_address_and_is_not_ready() {
        let mut status = available_status();
        status.mark_terminating();
        let not_ready = json!({
            "type": "Ready", "status": "False", "reason": "Terminating", "message": "The object is being deleted.",
        });
        assert_eq!(json_without_transition_times(&status), json!({"conditions": [not_ready]}));
    }

    #[test]
    fn an_object_is_unchanged_by_a_round_trip() {
        let mut object = AddressableService::new("x", AddressableServiceSpec { service_name: "web".into() });
        object.status = Some(available_status());
        let json = serde_json::to_value(&object).unwrap();
        let decoded: AddressableService = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&decoded).unwrap(), json);
    }
}
