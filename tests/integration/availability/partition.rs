//! Replicas that lose the API server: their connections break, or are never answered.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    cluster::{Cluster, Replica, SHORT_LEASES},
    load::Load,
    report::Report,
};
use crate::support::link::Condition;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an idle machine: hack/test.sh runs it after the others"]
async fn a_replica_without_the_api_server_stops_leading_before_another_starts_and_recovers() {
    let cluster = Cluster::start("partition", SHORT_LEASES, 10).await;
    let [broken, silent, _third] = &cluster.start_three_replicas().await;
    let load = Load::mixed(&cluster.objects, 20, 0).await;
    load.wait_for_operations(40).await;

    let lost = Timestamp::now();
    broken.set_link(Condition::Broken);
    silent.set_link(Condition::Silent);
    cluster.wait_for_holders("one leader", |shares| shares.len() == 1).await;
    let taken = Timestamp::now();
    broken.set_link(Condition::Up);
    silent.set_link(Condition::Up);
    cluster.wait_for_shares(&[4, 3, 3]).await;
    load.wait_for_operations(20).await;
    let report = Report::after(load, &cluster).await;
    report.assert_led_by_one(&[(silent.name.clone(), taken)]);
    report.assert_reconciled_within(SHORT_LEASES.lease * 2, lost);
    for replica in [broken, silent] {
        assert_stopped_at_renew_deadline(replica, &report, lost, taken);
    }
}

/// Checks by the log of a replica that it stopped leading each of its buckets at the renew deadline, and before the next
/// leader of the bucket started.
fn assert_stopped_at_renew_deadline(replica: &Replica, report: &Report, lost: Timestamp, taken: Timestamp) {
    let terms = report.history.terms();
    let ended =
        terms.iter().filter(|term| term.holder == replica.name && (lost..taken).contains(&term.until));
    let mut buckets = 0;
    for term in ended {
        let stopped = stop_time(replica, &term.lease, lost);
        let late = stopped.duration_since(term.until);
        assert!(late <= SignedDuration::from_millis(500), "logged {late:?} after the deadline: {term:?}");
        let next = terms.iter().find(|next| next.lease == term.lease && next.from > term.until);
        let next = next.unwrap_or_else(|| panic!("no leader after {term:?}"));
        assert!(stopped < next.from, "{} stopped at {stopped}, and then {next:?}", replica.name);
        buckets += 1;
    }
    println!("{} stopped leading {buckets} buckets at the renew deadline", replica.name);
    assert!(buckets >= 3, "{} lost {buckets} buckets: {terms:#?}", replica.name);
}

/// The time at which the replica logged that it stopped leading a bucket, after it lost the API server.
fn stop_time(replica: &Replica, lease: &str, lost: Timestamp) -> Timestamp {
    let times = replica.process.lines().into_iter().filter_map(|line| {
        let message = line["message"].as_str()?;
        let is_stop = line["lease"] == lease && message == "lost leadership";
        is_stop.then(|| line["timestamp"].as_str()?.parse::<Timestamp>().ok())?
    });
    let mut later = times.filter(|time| *time > lost);
    later.next().unwrap_or_else(|| panic!("no log line about {lease}:\n{}", replica.process.last_lines()))
}
