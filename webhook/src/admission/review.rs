//! A request as the API server sends it, and what is answered.

use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation as Wire};
use reknit_apis::{Operation, Request};
use serde_json::{Value, json};

use crate::admission::raw::Raw;

/// What the API server asks, taken apart.
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) object: Option<Value>,
    pub(crate) old: Option<Value>,
}

/// Who answers to requests about objects of a Kind: its group, version and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct About {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl About {
    pub(crate) fn of<K: kube::Resource<DynamicType = ()>>() -> Self {
        Self { group: K::group(&()).into(), version: K::version(&()).into(), kind: K::kind(&()).into() }
    }

    pub(crate) fn asked(request: &AdmissionRequest<Raw>) -> Self {
        let kind = &request.kind;
        Self { group: kind.group.clone(), version: kind.version.clone(), kind: kind.kind.clone() }
    }
}

impl About {
    /// A rule of a webhook configuration.
    pub(crate) fn rule(&self, operations: &[&str], resources: &[String]) -> Value {
        json!({
            "operations": operations, "apiGroups": [self.group], "apiVersions": [self.version],
            "resources": resources, "scope": "*",
        })
    }
}

/// As Go writes it.
impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.group {
            "" => write!(f, "/{}, Kind={}", self.version, self.kind),
            group => write!(f, "{group}/{}, Kind={}", self.version, self.kind),
        }
    }
}

impl Asked {
    /// None for what is let through unseen, such as a connection to a pod.
    pub(crate) fn new(asked: AdmissionRequest<Raw>) -> Option<Self> {
        let operation = match asked.operation {
            Wire::Create => Operation::Create,
            Wire::Update => Operation::Update,
            Wire::Delete => Operation::Delete,
            Wire::Connect => return None,
        };
        let request = Request {
            operation,
            user: asked.user_info,
            namespace: asked.namespace.filter(|namespace| !namespace.is_empty()),
            name: asked.name,
            subresource: asked.sub_resource.filter(|subresource| !subresource.is_empty()),
            dry_run: asked.dry_run,
        };
        let value = |raw: Option<Raw>| raw.map(|raw| raw.value).filter(|value| !value.is_null());
        Some(Self { request, object: value(asked.object), old: value(asked.old_object) })
    }

    /// Whether an object that is being deleted is only let go: nothing but its metadata changes, its finalizers as a rule.
    /// Whatever is wrong with it by now, that must be possible.
    pub(crate) fn lets_go(&self) -> bool {
        let (Some(object), Some(old)) = (&self.object, &self.old) else { return false };
        let is_deleted = !old["metadata"]["deletionTimestamp"].is_null();
        self.request.operation == Operation::Update && is_deleted && is_same_but_metadata(object, old)
    }
}

fn is_same_but_metadata(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return false };
    let same = |(key, value): (&String, &Value)| key == "metadata" || other.get(key) == Some(value);
    one.iter().all(same) && other.keys().all(|key| key == "metadata" || one.contains_key(key))
}

/// A refusal, as Knative's webhooks answer it.
pub(crate) fn refuse(response: AdmissionResponse, why: impl std::fmt::Display) -> AdmissionResponse {
    let mut response = response.deny(why);
    response.result.status = Some(kube::core::response::StatusSummary::Failure);
    response.result.reason = "BadRequest".into();
    response.result.code = 400;
    response
}
