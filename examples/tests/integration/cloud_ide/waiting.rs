//! The results of calls that wait for a space.

use std::time::Duration;

use kube::ResourceExt;
use serde_json::json;
use tonic::{Code, Request};

use super::ide::{Ide, ended, hang_up, refused};
use crate::support::process::Signal;

#[tokio::test(flavor = "multi_thread")]
async fn a_space_that_comes_to_run_is_told_with_its_place_and_stays() {
    let ide = Ide::start().await;
    let (call, pod) = ide.waiting("a").await;
    ide.set_status("a", json!({"phase": "Pending", "message": "pulling"})).await;
    ide.run("a").await;
    let place = ended(call).await.expect("it runs");
    assert_eq!((&*place.ip, place.port), ("10.1.2.3", 8443));
    ide.stays(&pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_that_runs_already_is_not_waited_for() {
    let ide = Ide::start().await;
    let (call, pod) = ide.waiting("a").await;
    ide.run("a").await;
    ended(call).await.expect("it runs");
    let place = ended(ide.create(ide.request("a"))).await.expect("it still does");
    assert_eq!(place.ip, "10.1.2.3");
    ide.stays(&pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_fails_or_ends_is_a_failed_precondition_at_once_and_for_whoever_asks_again() {
    let ide = Ide::start().await;
    for (name, phase) in [("a", "Failed"), ("b", "Succeeded")] {
        let (call, _) = ide.waiting(name).await;
        ide.set_status(name, json!({"phase": phase, "reason": "Evicted", "message": "no room"})).await;
        for call in [call, ide.create(ide.request(name))] {
            let (code, message) = refused(call).await;
            assert_eq!(code, Code::FailedPrecondition, "{message}");
            assert!(message.contains(phase) && message.contains("Evicted: no room"), "{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_aborts_the_wait_also_while_the_pod_still_takes_its_time() {
    let ide = Ide::start().await;
    let (call, _) = ide.waiting("a").await;
    ide.remove("a").await;
    assert_eq!(refused(call).await.0, Code::Aborted);

    let (call, _) = ide.waiting("b").await;
    ide.patch("b", json!({"metadata": {"finalizers": ["tests.reknit.dev/slow"]}})).await;
    ide.remove("b").await;
    assert_eq!(refused(call).await.0, Code::Aborted);

    // Asked for again meanwhile it is created anew, once the name is free.
    let again = ide.create(ide.request("b"));
    let waits = |line: &serde_json::Value| line["message"] == "waiting for an older pod of this name to go";
    ide.program.line("that it waits for the older one to go", waits).await;
    assert!(!again.is_finished());
    let going = ide.uid("b").await;
    ide.patch("b", json!({"metadata": {"finalizers": null}})).await;
    let is_new = async || ide.uid("b").await.filter(|uid| Some(uid) != going.as_ref());
    reknit::testing::eventually("a new pod", crate::support::wait::SOON, is_new).await;
    ide.run("b").await;
    ended(again).await.expect("it runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_replaced_while_the_program_cannot_look_aborts_the_wait_and_the_new_one_stays() {
    let ide = Ide::start().await;
    let (call, old) = ide.waiting("a").await;
    ide.program.signal(Signal::STOP);
    ide.remove("a").await;
    ide.gone("a").await;
    let new = ide.space_by_hand("a").await;
    assert_ne!(new.uid(), old.uid());
    ide.program.signal(Signal::CONT);
    assert_eq!(refused(call).await.0, Code::Aborted);
    ide.stays(&new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_through_the_service_aborts_the_wait_of_another() {
    let mut ide = Ide::start().await;
    let (call, _) = ide.waiting("a").await;
    ide.client.delete_space(ide.query("a")).await.expect("it is deleted");
    assert_eq!(refused(call).await.0, Code::Aborted);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_deadline_the_server_says_so_and_the_space_goes() {
    let ide = Ide::start().await;
    for timeout in ["500m", "1S"] {
        let mut request = Request::new(ide.request("a"));
        request.metadata_mut().insert("grpc-timeout", timeout.parse().expect("a timeout"));
        assert_eq!(refused(ide.create(request)).await.0, Code::DeadlineExceeded);
        ide.gone("a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_goes_when_the_last_of_those_who_wait_hangs_up() {
    let ide = Ide::start().await;
    let (first, pod) = ide.waiting("a").await;
    let (second, _) = ide.waiting("a").await;
    let (third, joined) = ide.waiting("a").await;
    assert_eq!(joined.metadata.uid, pod.metadata.uid, "they wait for one pod");
    hang_up(first).await;
    ide.stays(&pod).await;
    hang_up(third).await;
    ide.stays(&pod).await;
    hang_up(second).await;
    ide.gone("a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_still_waits_is_answered_after_another_hung_up() {
    let ide = Ide::start().await;
    let (first, pod) = ide.waiting("a").await;
    let (second, _) = ide.waiting("a").await;
    let (third, _) = ide.waiting("a").await;
    hang_up(first).await;
    ide.stays(&pod).await;
    ide.run("a").await;
    assert_eq!(ended(second).await.expect("it runs").ip, "10.1.2.3");
    assert_eq!(ended(third).await.expect("it runs").ip, "10.1.2.3");
    ide.stays(&pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_hangs_up_while_the_pod_is_being_created_leaves_none_behind() {
    let ide = Ide::start().await;
    // At any moment of the call.
    for round in 0..40 {
        let call = ide.create(ide.request("a"));
        tokio::time::sleep(Duration::from_micros(round * 500)).await;
        hang_up(call).await;
    }
    let (call, _) = ide.waiting("b").await;
    hang_up(call).await;
    ide.gone("b").await;
    ide.gone("a").await;
    let left =
        crate::support::wait::settled(Duration::from_secs(1), "the pods", async || ide.names().await).await;
    assert_eq!(left, [""; 0], "{}", ide.program.tail());
}
