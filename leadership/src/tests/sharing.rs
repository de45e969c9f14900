//! The division of the buckets of a controller among replicas.

use std::time::Duration;

use http::Method;
use tokio::time::sleep;

use super::replica::{RETRY, Replica, wait_for_shares};
use crate::fake::FakeApi;

/// The holders of the buckets' leases.
fn holders(api: &FakeApi) -> Vec<String> {
    let buckets = api.names().into_iter().filter(|name| name.contains("-of-"));
    buckets.map(|name| api.holder(&name)).collect()
}

/// The number of times that the buckets' leases have changed their holders.
fn transitions(api: &FakeApi) -> i64 {
    let buckets = api.names().into_iter().filter(|name| name.contains("-of-"));
    buckets.map(|name| api.spec(&name)["leaseTransitions"].as_i64().unwrap()).sum()
}

fn moves(before: &[String], after: &[String]) -> usize {
    before.iter().zip(after).filter(|(before, after)| before != after).count()
}

#[tokio::test(start_paused = true)]
async fn replicas_share_the_buckets_and_only_surplus_buckets_move() {
    let api = FakeApi::default();
    let first = Replica::start(&api, "a");
    wait_for_shares(&[&first], &[10]).await;
    let second = Replica::start(&api, "b");
    assert!(wait_for_shares(&[&first, &second], &[5, 5]).await < RETRY * 2);
    let third = Replica::start(&api, "c");
    sleep(RETRY * 2).await;
    let mut shares = [first.led(), second.led(), third.led()];
    shares.sort_unstable();
    assert_eq!(shares, [3, 3, 4]);

    let before = holders(&api);
    third.stop().await;
    assert!(wait_for_shares(&[&first, &second], &[5, 5]).await < Duration::from_secs(1));
    let between = holders(&api);
    assert!(moves(&before, &between) <= 4);

    let third = Replica::start(&api, "c");
    sleep(RETRY * 2).await;
    let mut shares = [first.led(), second.led(), third.led()];
    shares.sort_unstable();
    assert_eq!(shares, [3, 3, 4]);
    assert!(moves(&between, &holders(&api)) <= 4);
}

/// A process that starts cannot know how old the listed leases are: it counts a killed member as alive for a whole lease
/// duration, unless the others have deleted the member's lease.
#[tokio::test(start_paused = true)]
async fn a_replica_that_starts_right_after_the_leases_of_a_killed_one_expired_gets_its_share_at_once() {
    let api = FakeApi::default();
    let (first, second) = (Replica::start(&api, "a"), Replica::start(&api, "b"));
    let killed = Replica::start(&api, "c");
    sleep(RETRY * 2).await;
    drop(killed);
    wait_for_shares(&[&first, &second], &[5, 5]).await;
    let before = transitions(&api);
    let third = Replica::start(&api, "d");
    sleep(RETRY * 2).await;
    assert_eq!((third.led(), transitions(&api) - before), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_settled_share_does_not_change() {
    let api = FakeApi::default();
    let replicas: Vec<_> = ["a", "b", "c"].iter().map(|name| Replica::start(&api, name)).collect();
    sleep(RETRY * 2).await;
    let before = holders(&api);
    sleep(RETRY * 60).await;
    assert_eq!(holders(&api), before);
    assert_eq!(replicas.iter().map(Replica::led).sum::<usize>(), 10);
}

#[tokio::test(start_paused = true)]
async fn replicas_without_a_controller_get_no_bucket_of_it() {
    let api = FakeApi::default();
    let both = Replica::start_with(&api, "a", 2, &["lamps", "rooms"]);
    let one = Replica::start_with(&api, "b", 2, &["lamps"]);
    wait_for_shares(&[&both, &one], &[3, 1]).await;
}

/// Go's electors make one request for each lease in each retry period, in every process.
#[tokio::test(start_paused = true)]
async fn idle_replicas_make_fewer_requests_than_go_would() {
    let api = FakeApi::default();
    let controllers = ["lamps", "rooms"];
    let _replicas = ["a", "b", "c"].map(|name| Replica::start_with(&api, name, 10, &controllers));
    sleep(RETRY * 3).await;
    let requests = || [Method::GET, Method::POST, Method::PATCH].map(|method| api.requests(&method).len());
    let before: usize = requests().iter().sum();
    sleep(RETRY * 6).await;
    let per_minute = requests().iter().sum::<usize>() - before;
    let per_minute_in_go = 10 * controllers.len() * 3 * 6;
    println!("{per_minute} requests a minute, in Go {per_minute_in_go}");
    // One for each of 20 buckets and three members, each retry period.
    assert!(per_minute <= 23 * 6 + 23 && per_minute < per_minute_in_go, "{per_minute}");
}

#[tokio::test(start_paused = true)]
async fn a_bucket_is_handed_over_after_its_running_passes() {
    let api = FakeApi::default();
    let first = Replica::start_with(&api, "a", 2, &["lamps"]);
    wait_for_shares(&[&first], &[2]).await;
    let keys: Vec<_> = (0..20).map(|n| reknit_apis::Key::new("default", &n.to_string())).collect();
    let passes: Vec<_> = keys.iter().map(|key| first.lamps().start_pass(key).unwrap()).collect();

    let second = Replica::start_with(&api, "b", 2, &["lamps"]);
    sleep(RETRY).await;
    assert_eq!((first.led(), second.led()), (2, 0), "the passes still run");
    let moved: Vec<_> = keys.iter().filter(|key| !first.lamps().leads(key)).collect();
    assert!(!moved.is_empty() && moved.len() < keys.len());
    assert!(moved.iter().all(|key| first.lamps().start_pass(key).is_none()), "no pass starts meanwhile");

    drop(passes);
    assert!(wait_for_shares(&[&first, &second], &[1, 1]).await < Duration::from_secs(1));
    assert!(moved.iter().all(|key| second.lamps().leads(key)));
}

#[tokio::test(start_paused = true)]
async fn a_new_number_of_buckets_is_used_once_no_older_replica_uses_the_old_one() {
    let api = FakeApi::default();
    let old = Replica::start_with(&api, "a", 1, &["lamps"]);
    let standby = Replica::start_with(&api, "b", 1, &["lamps"]);
    sleep(RETRY).await;
    let new = Replica::start_with(&api, "c", 10, &["lamps"]);
    sleep(RETRY * 3).await;
    assert_eq!((old.led() + standby.led(), new.led()), (1, 0));

    old.stop().await;
    wait_for_shares(&[&standby, &new], &[1, 0]).await;
    standby.stop().await;
    assert!(wait_for_shares(&[&new], &[10]).await < Duration::from_secs(2));

    let back = Replica::start_with(&api, "a", 1, &["lamps"]);
    sleep(RETRY * 3).await;
    assert_eq!((new.led(), back.led()), (10, 0));
    new.stop().await;
    assert!(wait_for_shares(&[&back], &[1]).await < Duration::from_secs(2));
}
