//! The time until a bucket has its next leader.

use std::time::Duration;

use http::Method;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::replica::{LEASE, RETRY, Replica, wait_for_shares};
use crate::{
    LeaderElectionConfig,
    fake::{FakeApi, Fault},
};

const BUCKET: &str = "test.lamps.00-of-01";

fn held_by(holder: &str, renewed: &str) -> Value {
    json!({"holderIdentity": holder, "leaseDurationSeconds": 60, "leaseTransitions": 1,
        "acquireTime": renewed, "renewTime": renewed})
}

#[tokio::test(start_paused = true)]
async fn a_released_bucket_is_taken_within_a_second() {
    let api = FakeApi::default();
    let leader = Replica::start_with(&api, "a", 1, &["lamps"]);
    wait_for_shares(&[&leader], &[1]).await;
    let standby = Replica::start_with(&api, "b", 1, &["lamps"]);
    sleep(RETRY * 2).await;
    leader.stop().await;
    assert!(wait_for_shares(&[&standby], &[1]).await < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_process_leads_at_once_although_the_watch_reports_its_own_lease_before_the_answer() {
    let api = FakeApi::default();
    api.inject_fault(Method::POST, Fault::LateAnswer(Duration::from_millis(10)));
    let replica = Replica::start_with(&api, "a", 1, &["lamps"]);
    assert!(wait_for_shares(&[&replica], &[1]).await < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn the_bucket_of_a_killed_leader_is_taken_within_a_second_of_the_expiry_of_its_lease() {
    for seed in 0..20 {
        let api = FakeApi::default();
        let replicas = ["a", "b", "c"].map(|name| Replica::start(&api, name));
        let pause = StdRng::seed_from_u64(seed).random_range(20_000..40_000);
        sleep(Duration::from_millis(pause)).await;
        let [first, second, killed] = replicas;
        drop(killed);
        let taken = wait_for_shares(&[&first, &second], &[5, 5]).await;
        assert!(taken <= LEASE + Duration::from_secs(1), "seed {seed}: {taken:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_whose_leader_is_killed_after_a_handover_is_taken_within_a_second_of_the_expiry_of_its_lease()
 {
    let api = FakeApi::default();
    let first = Replica::start(&api, "a");
    wait_for_shares(&[&first], &[10]).await;
    let killed = Replica::start(&api, "b");
    wait_for_shares(&[&first, &killed], &[5, 5]).await;
    sleep(RETRY * 2).await;
    drop(killed);
    let taken = wait_for_shares(&[&first], &[10]).await;
    assert!(taken <= LEASE + Duration::from_secs(1), "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_alive_but_takes_no_bucket_delays_the_others_by_a_second() {
    let api = FakeApi::default();
    let first = Replica::start_with(&api, "a", 2, &["lamps"]);
    wait_for_shares(&[&first], &[2]).await;
    // A member that announces itself and takes nothing.
    let announcement = json!({"leaderelection.reknit.dev/component": "test",
        "leaderelection.reknit.dev/buckets": "2", "leaderelection.reknit.dev/controllers": "lamps"});
    api.put(
        "test.member.idle",
        json!({"annotations": announcement}),
        held_by("idle", "2020-01-01T00:00:00.000000Z"),
    );
    sleep(Duration::from_millis(500)).await;
    assert_eq!(first.led(), 1);
    // The idle member has one second to take its bucket.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(first.led(), 2);
    sleep(LEASE / 2).await;
    assert_eq!(first.led(), 2, "nothing is handed to the idle member again");
}

/// Members that join measure the expiry of every lease from their own start, so they cannot take the buckets yet. They
/// must not keep the survivor from it, which can.
#[tokio::test(start_paused = true)]
async fn members_that_join_after_the_death_of_a_leader_do_not_delay_the_others() {
    let seconds = Duration::from_secs;
    let config = LeaderElectionConfig {
        lease_duration: seconds(6),
        renew_deadline: seconds(4),
        retry_period: seconds(1),
        buckets: 10,
        ..Default::default()
    };
    let api = FakeApi::default();
    let start = |name| Replica::start_configured(&api, name, &config, &["lamps"]);
    let replicas = ["a", "b"].map(start);
    wait_for_shares(&[&replicas[0], &replicas[1]], &[5, 5]).await;
    let [survivor, killed] = replicas;
    drop(killed);
    let death = Instant::now();
    let mut members = vec![survivor];
    sleep(seconds(4)).await;
    for name in ["c", "d", "e"] {
        members.push(start(name));
        sleep(Duration::from_millis(300)).await;
    }
    while members.iter().map(Replica::led).sum::<usize>() < 10 {
        sleep(Duration::from_millis(10)).await;
    }
    let taken = death.elapsed();
    assert!(taken <= config.lease_duration + Duration::from_millis(100), "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_cut_off_leads_its_bucket_again_within_two_retry_periods() {
    let api = FakeApi::default();
    let replicas = ["a", "b"].map(|name| Replica::start_with(&api, name, 2, &["lamps"]));
    wait_for_shares(&[&replicas[0], &replicas[1]], &[1, 1]).await;
    api.set_down(true);
    sleep(RETRY * 5).await;
    assert_eq!(replicas.iter().map(Replica::led).sum::<usize>(), 0);
    api.set_down(false);
    assert!(wait_for_shares(&[&replicas[0], &replicas[1]], &[1, 1]).await < RETRY * 2);
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_killed_member_is_deleted_when_it_expires() {
    let api = FakeApi::default();
    let replicas = ["a", "b"].map(|name| Replica::start(&api, name));
    wait_for_shares(&[&replicas[0], &replicas[1]], &[5, 5]).await;
    let members = || api.names().iter().filter(|name| name.contains(".member.")).count();
    assert_eq!(members(), 2);
    let [_survivor, killed] = replicas;
    drop(killed);
    sleep(LEASE - RETRY).await;
    assert_eq!(members(), 2);
    sleep(RETRY + Duration::from_secs(1)).await;
    assert_eq!(members(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_watch_hangs_does_not_delete_the_leases_of_live_members() {
    let api = FakeApi::default();
    let _live = Replica::start(&api, "a");
    sleep(RETRY).await;
    let member = api.names().into_iter().find(|name| name.contains(".member.")).unwrap();
    let deletions_before = api.requests(&Method::DELETE).len();
    let config = LeaderElectionConfig { buckets: 10, ..Default::default() };
    let _hanging = Replica::start_watching(&api, "b", &config, &["lamps"], true);
    for _ in 0..LEASE.as_secs() * 2 {
        sleep(Duration::from_secs(1)).await;
        assert!(api.names().contains(&member), "{member} was deleted");
    }
    assert!(api.requests(&Method::DELETE).len() > deletions_before, "no deletion was attempted");
}

#[tokio::test(start_paused = true)]
async fn vacant_leases_are_taken_at_once_and_held_ones_after_their_duration_whatever_times_they_contain() {
    let far_future = "2999-01-01T00:00:00.000000Z";
    for spec in [
        json!(null),
        json!({}),
        json!({"holderIdentity": "", "leaseDurationSeconds": 1}),
        json!({"holderIdentity": "other", "leaseDurationSeconds": 0}),
    ] {
        let api = FakeApi::default();
        api.put_lease(BUCKET, spec.clone());
        let replica = Replica::start_with(&api, "a", 1, &["lamps"]);
        assert!(wait_for_shares(&[&replica], &[1]).await < Duration::from_secs(1), "{spec}");
    }
    for renewed in ["2020-01-01T00:00:00.000000Z", far_future] {
        let api = FakeApi::default();
        api.put_lease(BUCKET, held_by("dead", renewed));
        let replica = Replica::start_with(&api, "a", 1, &["lamps"]);
        let taken = wait_for_shares(&[&replica], &[1]).await;
        assert!(taken > LEASE && taken < LEASE + Duration::from_secs(1), "{renewed}: {taken:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_candidates_wins_an_expired_lease_even_if_a_write_is_late() {
    for seed in 0..200 {
        let api = FakeApi::default();
        api.put_lease(BUCKET, held_by("dead", "2020-01-01T00:00:00.000000Z"));
        let replicas = ["a", "b"].map(|name| Replica::start_with(&api, name, 1, &["lamps"]));
        sleep(LEASE - Duration::from_secs(1)).await;
        let delay = StdRng::seed_from_u64(seed).random_range(0..3_000);
        api.inject_fault(Method::PATCH, Fault::Late(Duration::from_millis(delay)));
        let end = Instant::now() + RETRY;
        while Instant::now() < end {
            sleep(Duration::from_millis(20)).await;
            let leaders = replicas.iter().map(Replica::led).sum::<usize>();
            assert!(leaders <= 1, "seed {seed}: {leaders} leaders");
        }
        assert_eq!(replicas.iter().map(Replica::led).sum::<usize>(), 1, "seed {seed}");
    }
}

/// A late report of an own write is no edit of the lease.
#[tokio::test(start_paused = true)]
async fn a_watch_that_lags_leads_to_no_more_renewals() {
    let writes = async |lag| {
        let api = FakeApi::default();
        api.lag(lag);
        let replica = Replica::start(&api, "a");
        wait_for_shares(&[&replica], &[10]).await;
        sleep(RETRY * 20).await;
        api.all_requests().iter().filter(|(method, _)| *method != Method::GET).count()
    };
    let (prompt, late) = (writes(Duration::ZERO).await, writes(Duration::from_secs(3)).await);
    assert!(late <= prompt + 20, "{late} writes instead of {prompt}");
}

/// Someone clears the holder, names another one, shortens the duration, or deletes the lease, which another replica may take
/// then. Two replicas lead for much less than the retry period of ten seconds.
#[tokio::test(start_paused = true)]
async fn the_leader_of_an_edited_lease_renews_it_or_stops_at_once() {
    type Edit = fn(&FakeApi, Value);
    let edits: [(&str, Edit); 4] = [
        ("no holder", |api, mut spec| {
            spec["holderIdentity"] = json!("");
            api.put_lease(BUCKET, spec);
        }),
        ("another holder", |api, mut spec| {
            spec["holderIdentity"] = json!("someone");
            api.put_lease(BUCKET, spec);
        }),
        ("a short duration", |api, mut spec| {
            spec["leaseDurationSeconds"] = json!(1);
            api.put_lease(BUCKET, spec);
        }),
        ("a deletion", |api, _| api.delete_lease(BUCKET)),
    ];
    for (name, edit) in edits {
        let api = FakeApi::default();
        let leader = Replica::start_with(&api, "a", 1, &["lamps"]);
        wait_for_shares(&[&leader], &[1]).await;
        let standby = Replica::start_with(&api, "b", 1, &["lamps"]);
        sleep(RETRY * 3).await;
        let leads_alone = || {
            leader.led() + standby.led() <= 1 && api.holder(BUCKET).starts_with("a_") == (leader.led() == 1)
        };
        edit(&api, api.spec(BUCKET));
        sleep(Duration::from_millis(200)).await;
        for _ in 0..RETRY.as_millis() / 10 {
            assert!(leads_alone(), "{name}: {} leads", api.holder(BUCKET));
            sleep(Duration::from_millis(10)).await;
        }
    }
}
