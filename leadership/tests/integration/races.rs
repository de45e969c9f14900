//! Races of two candidates that read the same free lease.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use http::{Method, StatusCode};
use reknit_testing::{ControlPlane, eventually};
use tokio::sync::watch;

use super::process::{
    LEASE_NAME, Leases, Process, TIMEOUT, client_with_interceptor, elector_client, expired_lease, long_config,
};

const ROUNDS: usize = 200;
/// The number of rounds that run at once, each in a namespace of its own.
const BATCH: usize = 25;

/// Both candidates read the expired lease. The write of the slow candidate is delayed until the quick candidate leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_two_candidates_acquires_an_expired_lease_in_each_of_200_rounds() {
    let plane = ControlPlane::shared().await.unwrap();
    let delayed = Arc::new(AtomicUsize::new(0));
    let refused = Arc::new(AtomicUsize::new(0));
    for batch in 0..ROUNDS / BATCH {
        let rounds = (0..BATCH).map(|_| round(plane, delayed.clone(), refused.clone()));
        let wins: Vec<bool> = join_all(rounds).await;
        assert!(wins.iter().all(|win| *win), "batch {batch}: rounds in which only quick leads: {wins:?}");
    }
    let (delayed, refused) = (delayed.load(Ordering::SeqCst), refused.load(Ordering::SeqCst));
    println!("{ROUNDS} rounds with one winner each; {delayed} delayed writes, {refused} of them refused");
    assert_eq!((delayed, refused), (ROUNDS, ROUNDS));
}

/// Runs one round, and returns true if only the quick candidate leads at its end.
async fn round(plane: &ControlPlane, delayed: Arc<AtomicUsize>, refused: Arc<AtomicUsize>) -> bool {
    let namespace = plane.namespace("race").await.unwrap();
    let leases = Leases::of(plane.client().unwrap(), &namespace);
    leases.create(LEASE_NAME, expired_lease()).await;

    let (slow_tried_sender, slow_tried) = watch::channel(false);
    let (quick_leads_sender, quick_leads) = watch::channel(false);
    let slow = client_with_interceptor(elector_client(plane), move |client, request| {
        let (delayed, refused) = (delayed.clone(), refused.clone());
        let (slow_tried_sender, mut quick_leads) = (slow_tried_sender.clone(), quick_leads.clone());
        async move {
            if *request.method() != Method::PATCH {
                return Ok(client.send(request).await?);
            }
            let is_first = !slow_tried_sender.send_replace(true);
            quick_leads.wait_for(|leads| *leads).await?;
            let response = client.send(request).await?;
            if is_first {
                delayed.fetch_add(1, Ordering::SeqCst);
                refused.fetch_add((response.status() == StatusCode::CONFLICT).into(), Ordering::SeqCst);
            }
            Ok(response)
        }
    });
    // The quick candidate writes only once the slow candidate has read the lease and tries to write it.
    let quick = client_with_interceptor(elector_client(plane), move |client, request| {
        let mut slow_tried = slow_tried.clone();
        async move {
            if *request.method() == Method::PATCH {
                slow_tried.wait_for(|tried| *tried).await?;
            }
            Ok(client.send(request).await?)
        }
    });
    let slow = Process::start(slow, &namespace, &long_config());
    let mut quick = Process::start(quick, &namespace, &long_config());
    quick.wait_for_leadership().await;
    quick_leads_sender.send_replace(true);
    assert_never_both_lead(&slow, &quick, Duration::from_secs(1)).await;
    eventually("the holder", TIMEOUT, async || leases.holder(LEASE_NAME).await == quick.identity.as_str())
        .await;
    quick.leads() && !slow.leads()
}

async fn assert_never_both_lead(slow: &Process, quick: &Process, duration: Duration) {
    let checks = async {
        loop {
            assert!(!slow.leads() || !quick.leads(), "both lead");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(duration, checks).await.ok();
}
