//! Replicas that join and die share the buckets.

use k8s_openapi::jiff::Timestamp;

use super::{
    cluster::{Cluster, SHORT_LEASES},
    history::bucket_names,
    report::Report,
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an idle machine: hack/test.sh runs it after the others"]
async fn replicas_share_the_buckets_and_few_move_when_one_joins_or_dies() {
    let cluster = Cluster::start("sharing", SHORT_LEASES, 10).await;
    let first = cluster.start_replica().await;
    cluster.wait_for_shares(&[10]).await;
    let second = cluster.start_replica().await;
    cluster.wait_for_shares(&[5, 5]).await;
    let mut changes = vec![("the third joins", Timestamp::now())];
    let mut third = cluster.start_replica().await;
    cluster.wait_for_shares(&[4, 3, 3]).await;
    changes.push(("the third dies", Timestamp::now()));
    third.kill().await;
    cluster.wait_for_shares(&[5, 5]).await;
    changes.push(("a third joins again", Timestamp::now()));
    let _third = cluster.start_replica().await;
    cluster.wait_for_shares(&[4, 3, 3]).await;

    let history = Report::new(&cluster).history;
    let mut later = 0;
    for (change, time) in changes.into_iter().rev() {
        let moved = history.terms_since(time) - later;
        println!("{change}: {moved} buckets move");
        let log = || {
            bucket_names(10)
                .iter()
                .flat_map(|lease| [first.log_of(lease), second.log_of(lease)].concat())
                .collect::<Vec<_>>()
        };
        assert!(
            (3..=4).contains(&moved),
            "{change}: {moved} buckets moved: {:#?}{:#?}",
            history.terms(),
            log()
        );
        later += moved;
    }
}
