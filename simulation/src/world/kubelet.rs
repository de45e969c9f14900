//! The kubelet of the replicas: it reports in the status of their Pods which process has terminated.
//!
//! The Pods are not among the objects of the cluster, so that a test which counts pods sees only those of its controllers.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use serde_json::{Value, json};

use crate::{
    faults::{Fault, Faults},
    replica::SYSTEM_NAMESPACE,
    time::Time,
    trace::Sent,
};

/// The longest time after which the kubelet reports that a container has terminated, without faults.
const PROMPT: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Kubelet {
    pods: Vec<Pod>,
}

/// The container of a replica.
#[derive(Clone, Default)]
struct Pod {
    /// The identity that the running process wrote to its termination message.
    identity: Option<String>,
    /// The termination message of the process that ended last.
    terminated: Option<Terminated>,
}

#[derive(Clone)]
struct Terminated {
    message: Option<String>,
    /// The time from which the status of the Pod has it.
    reported: Time,
}

impl Kubelet {
    pub(super) fn new(replicas: usize) -> Self {
        Self { pods: vec![Pod::default(); replicas] }
    }

    /// Learns the identity of a process, which its Leases name. A process that has written no Lease leads nothing.
    pub(super) fn observe(&mut self, sent: &Sent) {
        if !sent.is_of_leases() || !sent.is_write() {
            return;
        }
        let body: Value = serde_json::from_slice(&sent.body).unwrap_or_default();
        let holder = body["spec"]["holderIdentity"].as_str();
        let own = holder.filter(|holder| holder.starts_with(&format!("replica-{}_", sent.replica)));
        if let Some(identity) = own {
            self.pods[sent.replica].identity = Some(identity.into());
        }
    }

    /// Reports that the process of a replica has ended: soon, or, as a fault, late, never, or with the message of the
    /// process before it.
    pub(super) fn report(&mut self, replica: usize, faults: &mut Faults, now: Time) {
        let pod = &mut self.pods[replica];
        let identity = pod.identity.take();
        let prompt = faults.duration(Fault::CrashReports, 1, millis(PROMPT));
        if !faults.meets(Fault::CrashReports, 0.75, now) {
            pod.terminated = Some(Terminated { message: identity, reported: now + prompt });
            return;
        }
        match faults.choose(Fault::CrashReports, 3) {
            0 => {
                let late = faults.duration(Fault::CrashReports, millis(PROMPT), 60_000);
                pod.terminated = Some(Terminated { message: identity, reported: now + late });
            }
            1 => pod.terminated = None,
            _ => {
                let earlier = pod.terminated.take().and_then(|terminated| terminated.message);
                pod.terminated = Some(Terminated { message: earlier, reported: now + prompt });
            }
        }
    }

    /// Answers a read of the Pod of a replica.
    pub(super) fn answer(&self, request: &Request<Bytes>, now: Time) -> Option<Response<Bytes>> {
        let path = request.uri().path();
        let name = path.strip_prefix(&format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/"))?;
        let pod = self.pods.get(name.strip_prefix("replica-")?.parse::<usize>().ok()?)?;
        if request.method() != Method::GET {
            return None;
        }
        let terminated = pod.terminated.as_ref().filter(|terminated| terminated.reported <= now);
        let last_state = terminated.map(
            |Terminated { message, .. }| json!({"terminated": {"exitCode": 137, "reason": "Error", "message": message}}),
        );
        let container = json!({"name": "controller", "image": "controller", "imageID": "", "ready": true,
            "restartCount": 0, "lastState": last_state});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE, "uid": name},
            "status": {"phase": "Running", "containerStatuses": [container]}});
        Some(Response::new(Bytes::from(pod.to_string())))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
