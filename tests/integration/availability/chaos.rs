//! Random disturbances of replicas while objects change.

use std::{env, str::FromStr, time::Duration};

use k8s_openapi::jiff::SignedDuration;

use super::{
    cluster::{Cluster, SHORT_LEASES},
    disturber::Disturber,
    load::Load,
    report::{Gap, Report},
};

const DEFAULT_SECONDS: u64 = 20;
const OPERATIONS_PER_SECOND: u32 = 20;
/// The time that another replica may take to lead a bucket whose Lease has expired or was released.
const TIME_TO_LEAD: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an idle machine: hack/test.sh runs it after the others"]
async fn each_key_has_one_leader_and_no_object_is_wrong_after_random_disturbances() {
    let seed = variable("CHAOS_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000));
    let length = Duration::from_secs(variable("CHAOS_SECONDS").unwrap_or(DEFAULT_SECONDS));
    println!("to repeat: CHAOS_SEED={seed} CHAOS_SECONDS={}", length.as_secs());
    let cluster = Cluster::start("chaos", SHORT_LEASES, 10).await;
    let load = Load::mixed(&cluster.objects, OPERATIONS_PER_SECOND, seed).await;
    let mut disturber = Disturber::new(&cluster, seed);
    disturber.run(length).await;
    let names = disturber.end_all().await;
    cluster.wait_for_holders("every replica leads", |shares| shares.keys().eq(names.iter())).await;
    let report = Report::after(load, &cluster).await;

    println!("disturbances: {:?}", disturber.counts());
    report.assert_led_by_one(&disturber.resumptions);
    let longest = report.gaps().into_iter().max_by_key(|gap| gap.length).expect("a key");
    println!(
        "{} terms, the longest time without a leader: {:?}",
        report.history.terms().len(),
        longest.length
    );
    report.gaps().iter().for_each(|gap| assert_led_again_in_time(gap, &disturber));
    println!("{} changes were reconciled", report.reconciled().len());
}

/// Checks that a bucket was led again within [`TIME_TO_LEAD`] after its last term, or within that and the lease duration
/// after its leader was disturbed.
fn assert_led_again_in_time(gap: &Gap, disturber: &Disturber) {
    let disturbed = disturber.last_disturbance(&gap.last.holder, gap.end);
    let after_disturbance = disturbed.map(|time| time + signed(SHORT_LEASES.lease + TIME_TO_LEAD));
    let limit = after_disturbance.into_iter().chain([gap.last.until + signed(TIME_TO_LEAD)]).max();
    assert!(
        Some(gap.end) <= limit,
        "no leader for too long: {gap:#?}, the leader was disturbed at {disturbed:?}; {:#?}\nThe logs:\n{}",
        disturber.disturbances,
        disturber.log_of(&gap.last.lease)
    );
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).expect("a duration")
}

/// The value of an environment variable, if it is set.
fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
