//! The order of two leaders: the next one begins once its informers have what the last one wrote.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use http::Method;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use reknit_injection::{InformerHandle, InformerState};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::replica::{LEASE, RETRY, Replica, wait_for_shares};
use crate::{
    LeaderElectionConfig,
    fake::{FakeApi, Fault},
    last_writes::LAST_WRITES,
};

const BUCKET: &str = "test.lamps.00-of-01";
/// The time after which what the watches have not reported is listed.
const MAX_LAG: Duration = Duration::from_secs(2);

/// An informer of one part.
struct Lamps {
    /// The version of the last write of its process.
    written: u64,
    /// The version that its watch has reached.
    reached: watch::Sender<u64>,
    /// True if a list has everything.
    can_list: bool,
    is_listed: AtomicBool,
}

impl Lamps {
    fn new(written: u64, reached: u64, can_list: bool) -> Arc<Self> {
        let reached = watch::Sender::new(reached);
        Arc::new(Self { written, reached, can_list, is_listed: AtomicBool::new(false) })
    }
}

impl InformerHandle for Lamps {
    fn name(&self) -> &str {
        "lamps.demo [namespace=shop]"
    }

    fn state_in(&self, _namespace: Option<&str>) -> InformerState {
        InformerState::Synced { last_attempt: Instant::now() }
    }

    fn is_synced(&self) -> bool {
        true
    }

    fn synced(&self) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }

    fn last_writes(&self) -> Vec<(usize, String)> {
        vec![(0, self.written.to_string())]
    }

    fn reached(&self, part: usize, version: &str) -> BoxFuture<'static, ()> {
        assert_eq!(part, 0);
        let (mut reached, version): (_, u64) = (self.reached.subscribe(), version.parse().unwrap());
        Box::pin(async move { drop(reached.wait_for(|reached| *reached >= version).await) })
    }

    fn list_again(&self, _part: usize) {
        self.is_listed.store(true, Relaxed);
        if self.can_list {
            self.reached.send_replace(u64::MAX);
        }
    }
}

/// The longest wait.
fn limit() -> Duration {
    (LeaderElectionConfig::default().renew_deadline - RETRY) / 2
}

/// The annotation with this version.
fn written(version: u64) -> Value {
    json!(format!(r#"{{"lamps.demo [namespace=shop]":{{"0":"{version}"}}}}"#))
}

/// Starts a leader that has written version 7, and a standby, and stops the leader. Returns the standby.
async fn hand_over_to(api: &FakeApi, standby: &Arc<Lamps>) -> Replica {
    let leader = Replica::start_reading(api, "a", Lamps::new(7, 7, true));
    wait_for_shares(&[&leader], &[1]).await;
    let replica = Replica::start_reading(api, "b", standby.clone());
    sleep(LEASE).await;
    leader.stop().await;
    replica
}

fn annotation(api: &FakeApi) -> Value {
    api.annotations(BUCKET)[LAST_WRITES].clone()
}

#[tokio::test(start_paused = true)]
async fn a_leader_begins_once_its_watches_have_what_the_last_one_wrote() {
    let (api, lamps) = (FakeApi::default(), Lamps::new(0, 6, true));
    let standby = hand_over_to(&api, &lamps).await;
    sleep(MAX_LAG / 2).await;
    assert_eq!((standby.led(), api.holder(BUCKET).starts_with("b_")), (0, true));
    lamps.reached.send_replace(7);
    assert!(wait_for_shares(&[&standby], &[1]).await < Duration::from_millis(100));
    assert!(!lamps.is_listed.load(Relaxed));
    assert_eq!(annotation(&api), Value::Null);

    standby.stop().await;
    assert_eq!(annotation(&api), written(7), "the next watch may be behind both leaders");
}

#[tokio::test(start_paused = true)]
async fn what_a_watch_does_not_report_in_time_is_listed() {
    let (api, lamps) = (FakeApi::default(), Lamps::new(0, 6, true));
    let standby = hand_over_to(&api, &lamps).await;
    let taken = wait_for_shares(&[&standby], &[1]).await;
    assert!(lamps.is_listed.load(Relaxed) && taken >= MAX_LAG && taken < MAX_LAG * 3 / 2, "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_begins_at_last_without_what_neither_a_watch_nor_a_list_has() {
    let (api, lamps) = (FakeApi::default(), Lamps::new(0, 6, false));
    let standby = hand_over_to(&api, &lamps).await;
    let taken = wait_for_shares(&[&standby], &[1]).await;
    assert!(taken >= limit() - MAX_LAG && taken < limit() + Duration::from_secs(1), "{taken:?}");
    standby.stop().await;
    assert_eq!(annotation(&api), written(0));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stops_while_it_waits_leaves_the_last_writes_to_the_next_one() {
    let api = FakeApi::default();
    let standby = hand_over_to(&api, &Lamps::new(0, 6, false)).await;
    sleep(MAX_LAG).await;
    assert_eq!((standby.led(), api.holder(BUCKET).starts_with("b_")), (0, true));
    standby.stop().await;
    assert_eq!(annotation(&api), written(7));
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_lease_is_edited_while_it_waits_does_not_lead() {
    let api = FakeApi::default();
    let standby = hand_over_to(&api, &Lamps::new(0, 6, false)).await;
    sleep(MAX_LAG).await;
    let now = MicroTime(Timestamp::now());
    api.put_lease(
        BUCKET,
        json!({"holderIdentity": "other", "leaseDurationSeconds": 60, "leaseTransitions": 3,
        "acquireTime": now, "renewTime": now}),
    );
    sleep(limit() * 2).await;
    assert_eq!((standby.led(), api.holder(BUCKET)), (0, "other".into()));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_misses_the_answer_by_which_it_acquires_the_lease_waits_too() {
    let (api, lamps) = (FakeApi::default(), Lamps::new(0, 6, false));
    let leader = Replica::start_reading(&api, "a", Lamps::new(7, 7, true));
    wait_for_shares(&[&leader], &[1]).await;
    let standby = Replica::start_reading(&api, "b", lamps.clone());
    sleep(LEASE).await;
    leader.stop().await;
    api.inject_fault(Method::PATCH, Fault::AnswerLost);
    let taken = wait_for_shares(&[&standby], &[1]).await;
    assert!(lamps.is_listed.load(Relaxed) && taken > limit() / 2, "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_names_other_informers_or_cannot_be_read_delays_nothing() {
    for text in [r#"{"rooms.demo":{"0":"9"}}"#, r#"{"lamps.demo [namespace=shop]":"9"}"#, "", "{"] {
        let api = FakeApi::default();
        let spec = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 1});
        api.put(BUCKET, json!({"annotations": {LAST_WRITES: text}}), spec);
        let replica = Replica::start_reading(&api, "a", Lamps::new(0, 6, false));
        assert!(wait_for_shares(&[&replica], &[1]).await < Duration::from_secs(1), "{text}");
        assert_eq!(annotation(&api), Value::Null);
    }
}
