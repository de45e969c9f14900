//! Tests of calls that wait for a space.

use std::time::Duration;

use kube::ResourceExt;
use reknit::testing::eventually;
use serde_json::json;
use tonic::{Code, Request};

use super::ide::{Ide, cancel, error, result};
use crate::support::{
    process::{SendSignal, Signal},
    wait::{TIMEOUT, wait_until_settled},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_call_returns_the_address_once_the_space_runs_and_the_space_is_kept() {
    let ide = Ide::start().await;
    let (call, pod) = ide.create_and_wait_for_pod("a").await;
    ide.set_status("a", json!({"phase": "Pending", "message": "pulling"})).await;
    ide.set_running("a").await;
    let info = result(call).await.expect("it runs");
    assert_eq!((&*info.ip, info.port), ("10.1.2.3", 8443));
    ide.assert_kept(&pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_for_a_running_space_returns_at_once() {
    let ide = Ide::start().await;
    let (call, pod) = ide.create_and_wait_for_pod("a").await;
    ide.set_running("a").await;
    result(call).await.expect("it runs");
    let info = result(ide.create(ide.request("a"))).await.expect("it still does");
    assert_eq!(info.ip, "10.1.2.3");
    ide.assert_kept(&pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_or_completed_pod_is_a_failed_precondition_for_waiting_and_later_calls() {
    let ide = Ide::start().await;
    for (name, phase) in [("a", "Failed"), ("b", "Succeeded")] {
        let (call, _) = ide.create_and_wait_for_pod(name).await;
        ide.set_status(name, json!({"phase": phase, "reason": "Evicted", "message": "no room"})).await;
        for call in [call, ide.create(ide.request(name))] {
            let (code, message) = error(call).await;
            assert_eq!(code, Code::FailedPrecondition, "{message}");
            assert!(message.contains(phase) && message.contains("Evicted: no room"), "{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_aborts_the_call_even_while_the_pod_is_terminating() {
    let ide = Ide::start().await;
    let (call, _) = ide.create_and_wait_for_pod("a").await;
    ide.delete("a").await;
    assert_eq!(error(call).await.0, Code::Aborted);

    let (call, _) = ide.create_and_wait_for_pod("b").await;
    ide.merge_patch("b", json!({"metadata": {"finalizers": ["tests.reknit.dev/slow"]}})).await;
    ide.delete("b").await;
    assert_eq!(error(call).await.0, Code::Aborted);

    // A call in the meantime creates the space again once the name is free.
    let second_call = ide.create(ide.request("b"));
    let is_waiting =
        |line: &serde_json::Value| line["message"] == "waiting for an older pod of this name to be deleted";
    ide.program.wait_for_line("a call that waits for the deletion", is_waiting).await;
    assert!(!second_call.is_finished());
    let old_uid = ide.uid("b").await;
    ide.merge_patch("b", json!({"metadata": {"finalizers": null}})).await;
    let new_uid = async || ide.uid("b").await.filter(|uid| Some(uid) != old_uid.as_ref());
    eventually("a new pod", TIMEOUT, new_uid).await;
    ide.set_running("b").await;
    result(second_call).await.expect("it runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_replaced_while_the_program_is_stopped_aborts_the_call_and_the_new_pod_is_kept() {
    let ide = Ide::start().await;
    let (call, old) = ide.create_and_wait_for_pod("a").await;
    ide.program.signal(Signal::STOP);
    ide.delete("a").await;
    ide.wait_until_gone("a").await;
    let new = ide.create_space_pod("a").await;
    assert_ne!(new.uid(), old.uid());
    ide.program.signal(Signal::CONT);
    assert_eq!(error(call).await.0, Code::Aborted);
    ide.assert_kept(&new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_through_the_service_aborts_a_waiting_call() {
    let mut ide = Ide::start().await;
    let (call, _) = ide.create_and_wait_for_pod("a").await;
    ide.client.delete_space(ide.query("a")).await.expect("it is deleted");
    assert_eq!(error(call).await.0, Code::Aborted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_past_its_deadline_gets_deadline_exceeded_and_its_space_is_deleted() {
    let ide = Ide::start().await;
    for timeout in ["500m", "1S"] {
        let mut request = Request::new(ide.request("a"));
        request.metadata_mut().insert("grpc-timeout", timeout.parse().expect("a timeout"));
        assert_eq!(error(ide.create(request)).await.0, Code::DeadlineExceeded);
        ide.wait_until_gone("a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_is_deleted_when_the_last_waiting_call_is_cancelled() {
    let ide = Ide::start().await;
    let (first, pod) = ide.create_and_wait_for_pod("a").await;
    let (second, _) = ide.create_and_wait_for_pod("a").await;
    let (third, joined) = ide.create_and_wait_for_pod("a").await;
    assert_eq!(joined.metadata.uid, pod.metadata.uid, "all calls wait for the same pod");
    cancel(first).await;
    ide.assert_kept(&pod).await;
    cancel(third).await;
    ide.assert_kept(&pod).await;
    cancel(second).await;
    ide.wait_until_gone("a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_calls_still_wait_after_one_is_cancelled() {
    let ide = Ide::start().await;
    let (first, pod) = ide.create_and_wait_for_pod("a").await;
    let (second, _) = ide.create_and_wait_for_pod("a").await;
    let (third, _) = ide.create_and_wait_for_pod("a").await;
    cancel(first).await;
    ide.assert_kept(&pod).await;
    ide.set_running("a").await;
    assert_eq!(result(second).await.expect("it runs").ip, "10.1.2.3");
    assert_eq!(result(third).await.expect("it runs").ip, "10.1.2.3");
    ide.assert_kept(&pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cancelled_during_the_creation_leaves_no_pod() {
    let ide = Ide::start().await;
    // Cancels at different moments of the call.
    for round in 0..40 {
        let call = ide.create(ide.request("a"));
        tokio::time::sleep(Duration::from_micros(round * 500)).await;
        cancel(call).await;
    }
    let (call, _) = ide.create_and_wait_for_pod("b").await;
    cancel(call).await;
    ide.wait_until_gone("b").await;
    ide.wait_until_gone("a").await;
    let pods = wait_until_settled(Duration::from_secs(1), "the pods", async || ide.pod_names().await).await;
    assert_eq!(pods, [""; 0], "{}", ide.program.last_lines());
}
