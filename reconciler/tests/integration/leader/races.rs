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
    LEASE_NAME, Leases, Process, TIMEOUT, client, client_with_interceptor, expired_lease, long_config,
};

const ROUNDS: usize = 50;

/// Both candidates read the expired lease. The write of the slow one is delayed until the quick one leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_two_candidates_acquires_an_expired_lease_in_each_of_50_rounds() {
    let plane = ControlPlane::shared().await.unwrap();
    let delayed = Arc::new(AtomicUsize::new(0));
    let refused = Arc::new(AtomicUsize::new(0));
    for batch in 0..ROUNDS / 10 {
        let rounds = (0..10).map(|_| round(plane, delayed.clone(), refused.clone()));
        let winners: Vec<_> = join_all(rounds).await;
        assert!(winners.iter().all(|winner| *winner == "quick"), "batch {batch}: {winners:?}");
    }
    let (delayed, refused) = (delayed.load(Ordering::SeqCst), refused.load(Ordering::SeqCst));
    println!("{ROUNDS} rounds with one winner each; {delayed} delayed writes, {refused} of them refused");
    assert_eq!((delayed, refused), (ROUNDS, ROUNDS));
}

async fn round(plane: &ControlPlane, delayed: Arc<AtomicUsize>, refused: Arc<AtomicUsize>) -> &'static str {
    let namespace = plane.namespace("race").await.unwrap();
    let leases = Leases::of(plane.client().unwrap(), &namespace);
    leases.create(LEASE_NAME, expired_lease()).await;

    let (slow_tried, slow_has_tried) = watch::channel(false);
    let (quick_led, quick_leads) = watch::channel(false);
    let slow = client_with_interceptor(client(plane), move |client, request| {
        let (delayed, refused) = (delayed.clone(), refused.clone());
        let (slow_tried, mut quick_leads) = (slow_tried.clone(), quick_leads.clone());
        async move {
            if *request.method() != Method::PATCH {
                return Ok(client.send(request).await?);
            }
            let is_first = !slow_tried.send_replace(true);
            quick_leads.wait_for(|leads| *leads).await?;
            let response = client.send(request).await?;
            if is_first {
                delayed.fetch_add(1, Ordering::SeqCst);
                refused.fetch_add((response.status() == StatusCode::CONFLICT).into(), Ordering::SeqCst);
            }
            Ok(response)
        }
    });
    // The quick candidate writes only once the slow one has read the lease and tries to write it.
    let quick = client_with_interceptor(client(plane), move |client, request| {
        let mut slow_has_tried = slow_has_tried.clone();
        async move {
            if *request.method() == Method::PATCH {
                slow_has_tried.wait_for(|tried| *tried).await?;
            }
            Ok(client.send(request).await?)
        }
    });
    let slow = Process::start(slow, &namespace, &long_config());
    let mut quick = Process::start(quick, &namespace, &long_config());
    quick.wait_for_leadership().await;
    quick_led.send_replace(true);
    assert_never_both_lead(&slow, &quick, Duration::from_secs(1)).await;
    eventually("the holder", TIMEOUT, async || leases.holder(LEASE_NAME).await == quick.identity.as_str())
        .await;
    if quick.leads() && !slow.leads() { "quick" } else { "not only quick" }
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
