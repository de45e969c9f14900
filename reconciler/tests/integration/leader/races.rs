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

use super::process::{Leases, NAME, Process, SOON, client, expired, patient, tampered};

const ROUNDS: usize = 50;

/// Both candidates read the lease when it can be acquired. The write of the first is delayed until that of the second is
/// applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_candidates_for_an_expired_lease_one_wins_in_50_runs() {
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
    leases.put(NAME, expired()).await;

    let (held, waits) = watch::channel(false);
    let (taken, release) = watch::channel(false);
    let slow = tampered(client(plane), move |client, request| {
        let (delayed, refused) = (delayed.clone(), refused.clone());
        let (held, mut release) = (held.clone(), release.clone());
        async move {
            if *request.method() != Method::PATCH {
                return Ok(client.send(request).await?);
            }
            let first = !held.send_replace(true);
            release.wait_for(|taken| *taken).await?;
            let answer = client.send(request).await?;
            if first {
                delayed.fetch_add(1, Ordering::SeqCst);
                refused.fetch_add((answer.status() == StatusCode::CONFLICT).into(), Ordering::SeqCst);
            }
            Ok(answer)
        }
    });
    // The fast candidate writes after the slow one has sent its write.
    let quick = tampered(client(plane), move |client, request| {
        let mut waits = waits.clone();
        async move {
            if *request.method() == Method::PATCH {
                waits.wait_for(|held| *held).await?;
            }
            Ok(client.send(request).await?)
        }
    });
    let slow = Process::start(slow, &namespace, &patient());
    let mut quick = Process::start(quick, &namespace, &patient());
    quick.led().await;
    taken.send_replace(true);
    watch_for(&slow, &quick, Duration::from_secs(1)).await;
    eventually("the holder", SOON, async || leases.holder(NAME).await == quick.identity.as_str()).await;
    if quick.leads() && !slow.leads() { "quick" } else { "slow" }
}

async fn watch_for(slow: &Process, quick: &Process, time: Duration) {
    let looks = async {
        loop {
            assert!(!slow.leads() || !quick.leads(), "both lead");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(time, looks).await.ok();
}
