//! The writes of Leases and AddressableServices, from the audit log of the API server.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::support::server::Server;

/// The resource of a write.
pub(super) const LEASES: &str = "leases";
pub(super) const ADDRESSABLES: &str = "addressableservices";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// A request to write an object.
#[derive(Clone, Debug)]
pub(super) struct Write {
    /// The name of the replica that sent the request, or `admin` for the test itself.
    pub sender: String,
    pub verb: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// The time at which the API server received the request.
    pub received: Timestamp,
    /// The time at which the API server answered.
    pub answered: Timestamp,
    /// The status code of the response.
    code: u64,
    /// The object after the write. Null if the request was refused.
    pub object: Value,
}

impl Write {
    /// Returns the writes in a namespace, in the order in which they took effect. Refused writes come first.
    pub(super) fn all(server: &Server, namespace: &str) -> Vec<Self> {
        let events = server.audit_events().expect("the audit log");
        let ours = events.iter().filter(|event| event["objectRef"]["namespace"] == namespace);
        let mut writes: Vec<_> = ours.map(Self::parse).collect();
        writes.sort_by_key(|write| (write.version(), write.received));
        writes
    }

    fn parse(event: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let time = |field: &str| text(&event[field]).parse::<Timestamp>().expect("a time");
        let (user, target) = (text(&event["user"]["username"]), &event["objectRef"]);
        let account = user.strip_prefix(SERVICE_ACCOUNT).and_then(|account| account.rsplit(':').next());
        let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
        let is_accepted = (200..300).contains(&code);
        Self {
            sender: account.unwrap_or(&user).to_owned(),
            verb: text(&event["verb"]),
            resource: text(&target["resource"]),
            subresource: text(&target["subresource"]),
            name: text(&target["name"]),
            received: time("requestReceivedTimestamp"),
            answered: time("stageTimestamp"),
            code,
            object: if is_accepted { event["responseObject"].clone() } else { Value::Null },
        }
    }

    pub(super) fn is_by_test(&self) -> bool {
        self.sender == "admin"
    }

    pub(super) fn is_accepted(&self) -> bool {
        !self.object.is_null()
    }

    /// Returns true if the log does not tell whether the write took effect: the API server answers 504 to a request whose
    /// connection has ended, and 500 if etcd did not answer in time, while etcd may have stored it.
    pub(super) fn is_unclear(&self) -> bool {
        matches!(self.code, 500 | 504)
    }

    /// The resourceVersion of the object after the write. 0 if the request was refused.
    pub(super) fn version(&self) -> u64 {
        let version = self.object["metadata"]["resourceVersion"].as_str();
        version.and_then(|version| version.parse().ok()).unwrap_or_default()
    }

    /// Returns true if this write of a replica completes the reconcile of `change`: it removes the finalizer, or the status
    /// shows the generation.
    pub(super) fn completes(&self, change: &Self) -> bool {
        let is_terminating = |write: &Self| write.object["metadata"]["deletionTimestamp"].is_string();
        let is_finalized = is_terminating(self) && !self.object["metadata"]["finalizers"].is_array();
        let generation = change.object["metadata"]["generation"].as_u64();
        let is_observed = self.object["status"]["observedGeneration"].as_u64() >= generation;
        let has_effect = is_finalized || (is_observed && !is_terminating(change));
        !self.is_by_test() && self.version() >= change.version() && has_effect
    }
}
