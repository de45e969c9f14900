//! The leadership of one replica while the API server refuses most of its requests.

use std::{
    cell::OnceCell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use reknit_injection::internal::{Environment, Seeded, within};
use tokio::time::{Instant, sleep};

use super::replica::Replica;
use crate::{LeaderElectionConfig, fake::FakeApi};

const OVERLOAD: Duration = Duration::from_secs(360);

fn times(lease: u64, renew: u64, retry: u64) -> LeaderElectionConfig {
    let (lease, renew, retry) =
        (Duration::from_secs(lease), Duration::from_secs(renew), Duration::from_secs(retry));
    LeaderElectionConfig {
        lease_duration: lease,
        renew_deadline: renew,
        retry_period: retry,
        ..Default::default()
    }
}

/// The times of `config-leader-election` by default, and those of client-go.
fn all_times() -> [LeaderElectionConfig; 2] {
    [LeaderElectionConfig::default(), times(15, 10, 2)]
}

/// An environment whose wall clock goes on with tokio's clock.
struct Simulation {
    random: Rc<dyn Environment>,
    start: OnceCell<Instant>,
}

impl Environment for Simulation {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + self.start.get_or_init(Instant::now).elapsed()
    }

    fn random(&self, stream: &str) -> u64 {
        self.random.random(stream)
    }
}

/// The result of an overload of six minutes.
#[derive(Debug, Default)]
struct Trial {
    /// The number of leaderships of a bucket that were lost.
    lost: usize,
    /// The longest time for which the replica did not lead all of its buckets.
    longest_gap: Duration,
    /// The highest number of requests in one second.
    requests_a_second: usize,
}

/// Lets a replica lead these buckets of each controller while this percentage of its requests is refused with 429 and
/// `Retry-After: 1`. The same seed has the same result.
fn overload(
    seed: u64,
    percent: u32,
    config: &LeaderElectionConfig,
    buckets: u32,
    controllers: &[&str],
) -> Trial {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let trial = lead_under_overload(seed, percent, config, buckets, controllers);
    let environment: Rc<dyn Environment> =
        Rc::new(Simulation { random: Seeded::environment(seed), start: OnceCell::new() });
    within(&environment, || runtime.block_on(trial))
}

async fn lead_under_overload(
    seed: u64,
    percent: u32,
    config: &LeaderElectionConfig,
    buckets: u32,
    controllers: &[&str],
) -> Trial {
    let api = FakeApi::default();
    let config = LeaderElectionConfig { buckets, ..config.clone() };
    let replica = Replica::start_configured(&api, "a", &config, controllers);
    let all = buckets as usize * controllers.len();
    while replica.led() < all {
        sleep(Duration::from_millis(100)).await;
    }
    let lost = Arc::new(AtomicUsize::new(0));
    for leadership in replica.leaderships.values() {
        let (mut leadership, lost) = (leadership.clone(), lost.clone());
        leadership.changed().await;
        tokio::spawn(async move {
            loop {
                lost.fetch_add(leadership.changed().await.lost.len(), Relaxed);
            }
        });
    }
    api.refuse_for_a_second(seed, percent);
    let (mut trial, start, mut led_all) = (Trial::default(), Instant::now(), Instant::now());
    let mut seen = api.request_count();
    while start.elapsed() < OVERLOAD {
        sleep(Duration::from_secs(1)).await;
        let requests = api.request_count() - seen;
        seen += requests;
        trial.requests_a_second = trial.requests_a_second.max(requests);
        if replica.led() == all {
            led_all = Instant::now();
        }
        trial.longest_gap = trial.longest_gap.max(led_all.elapsed());
    }
    trial.lost = lost.load(Relaxed);
    trial
}

#[test]
fn leadership_survives_an_overloaded_api_server() {
    for config in all_times() {
        for seed in 0..4 {
            assert_eq!(overload(seed, 50, &config, 1, &["lamps"]).lost, 0, "seed {seed}, {config:?}");
            let trial = overload(seed, 70, &config, 1, &["lamps"]);
            assert!(trial.lost <= 1, "seed {seed}, {config:?}: {trial:?}");
            let trial = overload(seed, 90, &config, 1, &["lamps"]);
            assert!(trial.longest_gap < OVERLOAD / 2, "seed {seed}, {config:?}: {trial:?}");
        }
    }
}

#[test]
fn the_retries_of_a_process_stay_within_their_budget() {
    for config in all_times() {
        let trial = overload(1, 95, &config, 10, &["lamps", "rooms"]);
        // Ten retries, and the first attempts of the buckets that could be renewed.
        assert!(trial.requests_a_second <= 10 + 21, "{trial:?}");
        let trial = overload(1, 100, &config, 1, &["lamps"]);
        assert!(trial.requests_a_second <= 2 * 2, "{trial:?}");
    }
}

#[test]
#[ignore = "prints the table of docs/high-availability.md"]
fn losses_under_overload() {
    for (buckets, controllers, seeds) in [(1, &["lamps"][..], 200), (10, &["lamps", "rooms"], 5)] {
        for config in all_times() {
            for percent in [50, 70, 90] {
                let (mut trials, all) = (Vec::new(), buckets as usize * controllers.len());
                for seed in 0..seeds {
                    trials.push(overload(seed, percent, &config, buckets, controllers));
                }
                let lost: usize = trials.iter().map(|trial| trial.lost).sum();
                let most = trials.iter().map(|trial| trial.lost).max().unwrap();
                let with = trials.iter().filter(|trial| trial.lost > 0).count();
                let gap = trials.iter().map(|trial| trial.longest_gap).max().unwrap();
                let rate = trials.iter().map(|trial| trial.requests_a_second).max().unwrap();
                println!(
                    "{all:2} buckets, {:?}/{:?}/{:?}, {percent} % refused: lost {lost} in {seeds} times six minutes \
                     ({with} with a loss, at most {most}); longest gap {gap:?}; at most {rate} requests a second",
                    config.lease_duration, config.renew_deadline, config.retry_period
                );
            }
        }
    }
}
