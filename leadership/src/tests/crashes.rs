//! The time until the buckets of a crashed process have their next leader.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::replica::{Replica, wait_for_shares};
use crate::{
    LeaderElectionConfig,
    fake::{FakeApi, Fault},
};

/// The Pod of a process with this identity; `None` if there is none.
type PodOf = fn(&str) -> Option<Value>;

const LEASE: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(2);
const FENCE: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);
const BUCKET: &str = "test.lamps.00-of-01";
/// The identity of another process in the Pod of the leader.
const OTHER: &str = "a_00000000-0000-4000-8000-000000000000";

fn start(api: &FakeApi, name: &str) -> Replica {
    let config = LeaderElectionConfig {
        lease_duration: LEASE,
        renew_deadline: Duration::from_secs(10),
        retry_period: RETRY,
        ..Default::default()
    };
    Replica::start_configured(api, name, &config, &["lamps"])
}

/// Starts a leader, and a standby in another Pod. Kills the leader after some time. Returns its identity and the standby.
async fn crash(api: &FakeApi) -> (String, Replica) {
    crash_beside(api, "b").await
}

/// Does the same with the standby in this Pod, which may be the Pod `a` of the leader.
async fn crash_beside(api: &FakeApi, pod: &str) -> (String, Replica) {
    let leader = start(api, "a");
    wait_for_shares(&[&leader], &[1]).await;
    let standby = start(api, pod);
    sleep(RETRY * 4).await;
    drop(leader);
    (api.holder(BUCKET), standby)
}

/// The status of a Pod whose container has terminated with this reason and message.
fn terminated(state: &str, reason: &str, message: &str) -> Value {
    json!({"containerStatuses": [container(state, reason, message)]})
}

/// The status of a container that has terminated with this reason and message.
fn container(state: &str, reason: &str, message: &str) -> Value {
    json!({"name": "c", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
        state: {"terminated": {"exitCode": 137, "reason": reason, "message": message}}})
}

/// The status of a container that runs.
fn running() -> Value {
    json!({"name": "d", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": {"running": {}}})
}

fn members(api: &FakeApi) -> usize {
    api.names().iter().filter(|name| name.contains(".member.")).count()
}

#[tokio::test(start_paused = true)]
async fn another_replica_takes_over_from_a_process_that_is_proven_dead() {
    let api = FakeApi::default();
    let (dead, standby) = crash(&api).await;
    api.put_pod("a", terminated("state", "OOMKilled", &dead));
    let taken = wait_for_shares(&[&standby], &[1]).await;
    assert!(taken < RETRY * 3 / 2 + FENCE + SECOND / 2, "{taken:?}");
    sleep(SECOND / 10).await;
    assert_eq!(members(&api), 1, "the lease of the dead member is deleted");
}

/// The renewals of ten buckets are spread over the retry period of ten seconds, so one of them is soon overdue.
#[tokio::test(start_paused = true)]
async fn the_death_of_a_leader_of_many_buckets_is_noticed_within_a_few_seconds() {
    let config = LeaderElectionConfig { buckets: 10, ..Default::default() };
    let api = FakeApi::default();
    let leader = Replica::start_configured(&api, "a", &config, &["lamps"]);
    wait_for_shares(&[&leader], &[10]).await;
    let standby = Replica::start_configured(&api, "b", &config, &["lamps"]);
    wait_for_shares(&[&leader, &standby], &[5, 5]).await;
    sleep(config.retry_period * 3).await;
    drop(leader);
    let holders = (0..10).map(|bucket| api.holder(&format!("test.lamps.{bucket:02}-of-10")));
    let dead = holders.into_iter().find(|holder| holder.starts_with("a_")).unwrap();
    api.put_pod("a", terminated("state", "Error", &dead));
    let taken = wait_for_shares(&[&standby], &[10]).await;
    assert!(taken < config.retry_period, "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn reads_of_pods_without_an_answer_delay_no_other_proof() {
    let config = LeaderElectionConfig { buckets: 4, ..Default::default() };
    let api = FakeApi::default();
    let start = |name| Replica::start_configured(&api, name, &config, &["lamps"]);
    let leaders = ["a", "b", "c", "d"].map(start);
    wait_for_shares(&leaders.each_ref(), &[1; 4]).await;
    let standby = start("standby");
    sleep(config.retry_period * 3).await;
    drop(leaders);
    for holder in (0..4).map(|bucket| api.holder(&format!("test.lamps.{bucket:02}-of-04"))) {
        api.put_pod(&holder[..1], terminated("state", "Error", &holder));
    }
    for _ in 0..3 {
        api.inject_fault(Method::GET, Fault::AnswerLost);
    }
    let taken = wait_for_shares(&[&standby], &[1]).await;
    assert!(taken < config.retry_period + FENCE + SECOND, "{taken:?}"); // one after another, more than 20 seconds
}

/// All leases of a restarted process are new, so none is overdue before the retry period of ten seconds.
#[tokio::test(start_paused = true)]
async fn a_second_crash_of_a_container_is_noticed_as_soon_as_the_first() {
    let config = LeaderElectionConfig { buckets: 10, ..Default::default() };
    let api = FakeApi::default();
    let start = |name| Replica::start_configured(&api, name, &config, &["lamps"]);
    let (leader, standby) = (start("a"), start("b"));
    wait_for_shares(&[&leader, &standby], &[5, 5]).await;
    let identity = |earlier: &str| {
        let holders = (0..10).map(|bucket| api.holder(&format!("test.lamps.{bucket:02}-of-10")));
        holders.into_iter().find(|holder| holder.starts_with("a_") && holder != earlier).unwrap()
    };
    let first = identity("");
    sleep(config.retry_period * 3).await;
    drop(leader);
    api.put_pod("a", terminated("lastState", "Error", &first));
    let restarted = start("a");
    wait_for_shares(&[&restarted, &standby], &[5, 5]).await;
    let second = identity(&first);
    drop(restarted);
    api.put_pod("a", terminated("lastState", "Error", &second));
    let taken = wait_for_shares(&[&standby], &[10]).await;
    assert!(taken < config.retry_period, "{taken:?}"); // without those reads, 12 seconds
}

#[tokio::test(start_paused = true)]
async fn a_restarted_container_takes_over_from_its_predecessor() {
    let api = FakeApi::default();
    let (dead, standby) = crash(&api).await;
    drop(standby);
    api.put_pod("a", terminated("lastState", "Error", &format!("{dead}\n")));
    let restarted = start(&api, "a");
    let taken = wait_for_shares(&[&restarted], &[1]).await;
    assert!((FENCE..FENCE + RETRY).contains(&taken), "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_takeover_comes_no_earlier_than_two_seconds_after_the_proof_and_is_a_write_with_a_precondition() {
    let api = FakeApi::default();
    let (dead, standby) = crash(&api).await;
    sleep(RETRY * 2).await;
    api.put_pod("a", terminated("state", "Error", &dead));
    let proof = Instant::now();
    // A renewal that was on the wire when the process died.
    let mut late = api.spec(BUCKET);
    late["renewTime"] = json!("2030-01-01T00:00:00.000000Z");
    sleep(FENCE / 2).await;
    api.put_lease(BUCKET, late);
    wait_for_shares(&[&standby], &[1]).await;
    let taken = proof.elapsed();
    assert!((FENCE..FENCE + RETRY).contains(&taken), "{taken:?}");
    let takeover =
        api.requests(&Method::PATCH).into_iter().rfind(|patch| patch["metadata"]["name"] == BUCKET);
    assert!(takeover.unwrap()["metadata"]["resourceVersion"].is_string());
}

#[tokio::test(start_paused = true)]
async fn what_is_no_proof_leads_to_no_takeover() {
    let no_proof: [(&str, PodOf); 10] = [
        ("a deleted Pod, also by force", |_| None),
        ("a Pod that runs, or is paused", |_| Some(json!({"containerStatuses": [running()]}))),
        ("the state before the last restart", |_| {
            let mut earlier = running();
            earlier["lastState"] = container("lastState", "Error", OTHER)["lastState"].take();
            Some(json!({"containerStatuses": [earlier]}))
        }),
        ("another process that overwrote the message, by kubectl exec", |_| {
            Some(terminated("state", "Error", OTHER))
        }),
        ("another container with the same environment", |_| {
            Some(json!({"containerStatuses": [container("state", "Error", OTHER), running()]}))
        }),
        ("a second line", |dead| Some(terminated("state", "Error", &format!("a_0\n{dead}")))),
        ("an unknown status", |dead| Some(terminated("state", "ContainerStatusUnknown", dead))),
        ("a phase", |dead| Some(json!({"phase": "Failed", "reason": "NodeLost", "message": dead}))),
        ("a phase that the control plane wrote, of a Pod whose container was last seen running", |_| {
            Some(json!({"phase": "Failed", "reason": "NodeLost", "containerStatuses": [running()]}))
        }),
        ("no message", |_| Some(terminated("state", "OOMKilled", ""))),
    ];
    for ((name, status), standby) in no_proof.iter().flat_map(|case| [(case, "a"), (case, "b")]) {
        let api = FakeApi::default();
        let (dead, standby) = crash_beside(&api, standby).await;
        let crashed = Instant::now();
        if let Some(status) = status(&dead) {
            api.put_pod("a", status);
        }
        wait_for_shares(&[&standby], &[1]).await;
        let taken = crashed.elapsed();
        assert!((LEASE - RETRY..=LEASE + SECOND).contains(&taken), "{name}: {taken:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_may_not_be_read_leads_to_no_takeover() {
    let api = FakeApi::default();
    let (dead, standby) = crash(&api).await;
    let crashed = Instant::now();
    api.put_pod("a", terminated("state", "Error", &dead));
    for _ in 0..30 {
        api.inject_fault(Method::GET, Fault::Refused(403));
    }
    wait_for_shares(&[&standby], &[1]).await;
    let taken = crashed.elapsed();
    assert!((LEASE - RETRY..=LEASE + SECOND).contains(&taken), "{taken:?}");
    assert!((10..20).contains(&api.reads_of_pods()), "{} reads", api.reads_of_pods());
}

/// Replicas of one host that is no Pod, and a leader that renews late, are not proven dead, and their Pods are hardly read.
#[tokio::test(start_paused = true)]
async fn the_pod_of_a_live_replica_is_not_read() {
    let api = FakeApi::default();
    let _replicas = ["a", "b"].map(|name| start(&api, name));
    sleep(LEASE).await;
    let reads = api.reads_of_pods();
    sleep(LEASE * 10).await;
    assert_eq!((reads, api.reads_of_pods()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_no_name_of_a_pod_does_not_become_part_of_a_request() {
    let api = FakeApi::default();
    let annotations = json!({
        "leaderelection.reknit.dev/component": "test", "leaderelection.reknit.dev/buckets": "1",
        "leaderelection.reknit.dev/controllers": "lamps",
    });
    for (member, pod) in ["a/log", "a/../../secrets/b", "a?x=1", "a b", ""].iter().enumerate() {
        let spec = json!({"holderIdentity": format!("{pod}_0"), "leaseDurationSeconds": LEASE.as_secs()});
        api.put(&format!("test.member.{member}"), json!({"annotations": annotations}), spec);
    }
    let _replica = start(&api, "b");
    sleep(RETRY * 4).await;
    assert_eq!(api.reads_of_pods(), 0);
}

/// A client that may write Leases can announce any number of members.
#[tokio::test(start_paused = true)]
async fn ten_pods_a_second_are_read_however_many_members_there_are_and_each_in_turn() {
    let api = FakeApi::default();
    let leader = Replica::start_with(&api, "a", 1, &["lamps"]);
    wait_for_shares(&[&leader], &[1]).await;
    let standby = Replica::start_with(&api, "b", 1, &["lamps"]);
    sleep(SECOND * 20).await;
    drop(leader);
    let dead = api.holder(BUCKET);
    let annotation = |key: &str| format!("leaderelection.reknit.dev/{key}");
    let annotations =
        [(annotation("component"), "test"), (annotation("buckets"), "1"), (annotation("controllers"), "x")];
    for member in 0..60 {
        let metadata = json!({"annotations": annotations.clone().into_iter().collect::<BTreeMap<_, _>>()});
        let spec = json!({"holderIdentity": format!("0-made-up-{member}_0"), "leaseDurationSeconds": 600});
        api.put(&format!("test.member.{member}"), metadata, spec);
    }
    sleep(SECOND * 11).await;
    let before = api.reads_of_pods();
    sleep(SECOND * 5).await;
    let reads = api.reads_of_pods() - before;
    assert!((40..=60).contains(&reads), "{reads}");
    api.put_pod("a", terminated("state", "OOMKilled", &dead));
    let taken = wait_for_shares(&[&standby], &[1]).await;
    assert!(taken < SECOND * 7 + FENCE, "{taken:?}");
}
