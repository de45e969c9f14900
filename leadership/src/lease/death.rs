//! The proof that a process has died: the termination message of its container.
//!
//! Each process writes its identity, which contains a UUID, as the first line of the file of its termination message. The
//! kubelet reports that message once the container has terminated. So the message is about this process, whatever the
//! names of the Pod and of the container are. Nothing else in a Pod is a proof: its phase, its deletion or its absence may
//! be written while the process still runs on a node that the control plane does not reach.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

/// The reason in the state of a container that the kubelet did not find, and of which it knows nothing.
const UNKNOWN: &str = "ContainerStatusUnknown";

/// Returns true if a container of the Pod has terminated in which the process of this identity ran.
pub(crate) fn proves_death(pod: &Pod, identity: &str) -> bool {
    let statuses = pod.status.iter().flat_map(|status| {
        let lists = [&status.container_statuses, &status.init_container_statuses];
        lists.into_iter().flatten().flatten()
    });
    let states = statuses.flat_map(|status| [&status.state, &status.last_state]).flatten();
    states.filter_map(|state| state.terminated.as_ref()).any(|terminated| names(terminated, identity))
}

fn names(terminated: &ContainerStateTerminated, identity: &str) -> bool {
    let first_line = terminated.message.as_deref().and_then(|message| message.lines().next());
    terminated.reason.as_deref() != Some(UNKNOWN) && first_line == Some(identity)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ME: &str = "web-0_6d3a";

    fn is_proof(status: &Value) -> bool {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0"}, "status": status});
        proves_death(&serde_json::from_value(pod).unwrap(), ME)
    }

    fn container(state: &str, terminated: Value) -> Value {
        json!({"name": "c", "image": "i", "imageID": "i", "ready": false, "restartCount": 1,
            state: {"terminated": terminated}})
    }

    #[test]
    fn a_terminated_container_whose_message_names_the_process_proves_its_death() {
        for (reason, message) in
            [("Error", ME), ("OOMKilled", "web-0_6d3a\n"), ("Error", "web-0_6d3a\nfatal: x")]
        {
            let terminated = json!({"exitCode": 137, "reason": reason, "message": message});
            for list in ["containerStatuses", "initContainerStatuses"] {
                for state in ["state", "lastState"] {
                    assert!(
                        is_proof(&json!({list: [container(state, terminated.clone())]})),
                        "{list} {state}"
                    );
                }
            }
        }
    }

    #[test]
    fn nothing_else_proves_it() {
        let terminated = |reason, message: Value| {
            let terminated = json!({"exitCode": 137, "reason": reason, "message": message});
            json!({"containerStatuses": [container("state", terminated)]})
        };
        for status in [
            json!(null),
            json!({"phase": "Failed", "reason": "NodeLost", "message": ME}),
            terminated("ContainerStatusUnknown", json!(ME)),
            terminated("Error", json!(null)),
            terminated("Error", json!("")),
            terminated("Error", json!("web-0")),
            terminated("Error", json!("web-0_6d3a7")),
            terminated("Error", json!("web-0_0000\nweb-0_6d3a")),
            json!({"containerStatuses": [{"name": ME, "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": null}}, "lastState": {"waiting": {"message": ME}}}]}),
        ] {
            assert!(!is_proof(&status), "{status}");
        }
    }
}
