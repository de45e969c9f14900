//! The election of the leader of one bucket, by processes that poll its lease.

use std::time::Duration;

use futures::FutureExt;
use http::Method;
use prometheus::Registry;
use rand::{Rng, SeedableRng, rngs::StdRng};
use reknit_apis::Key;
use serde_json::{Value, json};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    Change, LeaderElectionConfig, Leadership,
    fake::{FakeApi, Fault},
    internal::{Candidate, Electors, Heartbeat, Identity},
};

const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);
/// The limit of each wait of an elector that stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const BUCKET: &str = "test.queue.00-of-01";

/// A process that takes part in the election until it is stopped or killed.
struct Process {
    identity: Identity,
    leadership: Leadership,
    stop: Option<oneshot::Sender<()>>,
    drained: Option<oneshot::Sender<()>>,
    electors: JoinHandle<()>,
}

impl Process {
    fn start(api: &FakeApi, name: &str) -> Self {
        Self::start_with(api, name, |candidate| candidate)
    }

    fn start_with(api: &FakeApi, name: &str, configure: impl FnOnce(Candidate) -> Candidate) -> Self {
        let config = LeaderElectionConfig {
            lease_duration: LEASE,
            renew_deadline: RENEW,
            retry_period: RETRY,
            ..Default::default()
        };
        let identity = Identity::on(name);
        let (client, registry) = (api.client(), Registry::new());
        let candidate = Candidate::new(client, "ns", "test", identity.clone(), &config, &registry).unwrap();
        let (leadership, electors) = Electors::new(&configure(candidate), "queue").unwrap();
        let ((stop, stopping), (drain, drained)) = (oneshot::channel(), oneshot::channel());
        let electors = tokio::spawn(async move {
            electors.run(stopping.map(drop), drained.map(drop)).await;
        });
        Self { identity, leadership, stop: Some(stop), drained: Some(drain), electors }
    }

    fn leads(&self) -> bool {
        self.leadership.leads(&key())
    }

    async fn changed(&mut self) -> Change {
        timeout(LEASE * 10, self.leadership.changed()).await.expect("leadership changes in time")
    }

    async fn wait_until_leading(&mut self) {
        self.changed().await;
        assert!(self.leads());
    }

    async fn wait_until_lost(&self) {
        let pass = self.leadership.start_pass(&key()).expect("this process leads");
        timeout(LEASE * 10, pass.lost()).await.expect("leadership ends in time");
    }

    /// Starts a clean shutdown.
    fn stop(&mut self) {
        self.stop.take();
    }

    /// Reports that all passes have ended.
    fn report_drained(&mut self) {
        self.drained.take();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.electors.abort();
    }
}

fn key() -> Key {
    Key::new("default", "web")
}

fn held_by(holder: &str) -> Value {
    json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 1,
        "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"})
}

#[tokio::test(start_paused = true)]
async fn leadership_continues_while_the_lease_is_renewed() {
    let api = FakeApi::default();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    let pass = process.leadership.start_pass(&key()).unwrap();
    assert!(timeout(LEASE * 20, pass.lost()).await.is_err());
    assert_eq!(api.holder(BUCKET), process.identity.as_str());
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_passes_make_no_progress_for_the_renew_deadline_is_replaced() {
    let api = FakeApi::default();
    let heartbeat = Heartbeat::default();
    let beating = tokio::spawn(heartbeat.clone().beat());
    let mut leader = Process::start_with(&api, "a", |candidate| candidate.while_alive(heartbeat));
    leader.wait_until_leading().await;
    let pass = leader.leadership.start_pass(&key()).unwrap();
    assert!(timeout(RENEW * 3, pass.lost()).await.is_err());
    let mut standby = Process::start(&api, "b");
    beating.abort();
    let start = Instant::now();
    leader.wait_until_lost().await;
    assert!((RENEW..RENEW * 2 + RETRY).contains(&start.elapsed()), "{:?}", start.elapsed());
    standby.wait_until_leading().await;
}

#[tokio::test(start_paused = true)]
async fn leadership_ends_at_the_renew_deadline_after_the_start_of_the_last_successful_attempt() {
    let api = FakeApi::default();
    api.put_lease(BUCKET, json!({}));
    api.inject_fault(Method::GET, Fault::LateAnswer(Duration::from_secs(3)));
    let start = Instant::now();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    assert_eq!(start.elapsed().as_secs(), 3);
    api.set_down(true);
    process.wait_until_lost().await;
    assert_eq!(start.elapsed().as_secs(), RENEW.as_secs());
    assert!(!process.leadership.has_known_leaders());
}

#[tokio::test(start_paused = true)]
async fn leadership_is_regained_in_a_new_term_when_the_api_server_is_back() {
    let api = FakeApi::default();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    api.set_down(true);
    assert_eq!(process.changed().await.lost.len(), 1);
    api.set_down(false);
    assert_eq!(process.changed().await.gained.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_on_renewal_does_not_end_leadership() {
    let api = FakeApi::default();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    for _ in 0..3 {
        api.inject_fault(Method::PATCH, Fault::Refused(409));
    }
    let pass = process.leadership.start_pass(&key()).unwrap();
    assert!(timeout(LEASE * 4, pass.lost()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn leadership_continues_while_half_of_the_requests_are_refused() {
    let api = FakeApi::default();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    api.overload(50);
    let pass = process.leadership.start_pass(&key()).unwrap();
    assert!(timeout(LEASE * 40, pass.lost()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_leader_renews_before_its_deadline_however_long_the_server_asks_to_wait() {
    let api = FakeApi::default();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    let pass = process.leadership.start_pass(&key()).unwrap();
    for _ in 0..3 {
        api.inject_fault(Method::PATCH, Fault::RefusedFor(600));
    }
    assert!(timeout(RENEW * 2, pass.lost()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_is_repeated_without_a_read() {
    let api = FakeApi::default();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    api.inject_fault(Method::PATCH, Fault::Refused(500));
    let reads = api.requests(&Method::GET).len();
    sleep(RETRY * 3).await;
    assert!(api.requests(&Method::PATCH).len() >= 3);
    assert_eq!(api.requests(&Method::GET).len(), reads);
}

#[tokio::test(start_paused = true)]
async fn leadership_ends_at_the_next_attempt_if_another_process_took_the_lease() {
    let api = FakeApi::default();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    api.put_lease(BUCKET, held_by("another"));
    let pass = process.leadership.start_pass(&key()).unwrap();
    assert!(timeout(RETRY * 2, pass.lost()).await.is_ok());
    assert!(process.leadership.has_known_leaders());
}

#[tokio::test(start_paused = true)]
async fn another_process_leads_once_the_lease_of_a_killed_leader_has_expired() {
    let api = FakeApi::default();
    let mut leader = Process::start(&api, "a");
    leader.wait_until_leading().await;
    let mut standby = Process::start(&api, "b");
    sleep(RETRY).await;
    assert!(standby.leadership.has_known_leaders() && !standby.leads());
    let killed = Instant::now();
    drop(leader);
    standby.wait_until_leading().await;
    let elapsed = killed.elapsed();
    assert!(elapsed > LEASE - RETRY * 2 && elapsed < LEASE + RETRY * 2, "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_shuts_down_leads_until_it_has_drained_and_then_releases_the_lease() {
    let api = FakeApi::default();
    let mut leader = Process::start(&api, "a");
    leader.wait_until_leading().await;
    let mut standby = Process::start(&api, "b");
    leader.stop();
    sleep(LEASE * 4).await;
    assert!(leader.leads() && !standby.leads());
    let start = Instant::now();
    leader.report_drained();
    standby.wait_until_leading().await;
    assert!(start.elapsed() <= RETRY, "{:?}", start.elapsed());
    assert!(!leader.leads());
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_shuts_down_acquires_nothing_and_ends_at_once() {
    let api = FakeApi::default();
    api.put_lease(BUCKET, held_by("other"));
    let mut standby = Process::start(&api, "a");
    sleep(RETRY).await;
    standby.stop();
    (&mut standby.electors).await.unwrap();
    assert_eq!(api.holder(BUCKET), "other");
    assert!(api.requests(&Method::PATCH).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_released_even_if_the_answer_to_acquiring_it_was_lost() {
    let api = FakeApi::default();
    api.put_lease(BUCKET, json!({}));
    api.inject_fault(Method::PATCH, Fault::AnswerLost);
    let mut process = Process::start(&api, "a");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(api.holder(BUCKET), process.identity.as_str());
    process.stop();
    process.report_drained();
    (&mut process.electors).await.unwrap();
    assert_eq!(api.holder(BUCKET), "");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_meets_a_conflict_is_retried() {
    let api = FakeApi::default();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    process.stop();
    api.inject_fault(Method::PATCH, Fault::Refused(409));
    process.report_drained();
    (&mut process.electors).await.unwrap();
    assert_eq!(api.holder(BUCKET), "");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_api_server_delays_the_shutdown_by_at_most_three_stop_timeouts() {
    let api = FakeApi::default();
    let mut process = Process::start(&api, "a");
    process.wait_until_leading().await;
    api.set_down(true);
    let start = Instant::now();
    process.stop();
    process.report_drained();
    (&mut process.electors).await.unwrap();
    assert!(start.elapsed() <= STOP_TIMEOUT * 3, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_missing_namespace_causes_no_hot_loop() {
    let api = FakeApi::default().without_namespace();
    let process = Process::start(&api, "a");
    sleep(RETRY * 30).await;
    assert!(!process.leads());
    let requests = api.requests(&Method::POST).len();
    assert!((20..=61).contains(&requests), "{requests} in a minute");
}

#[tokio::test(start_paused = true)]
async fn permanent_conflicts_cause_no_hot_loop() {
    let api = FakeApi::default();
    api.put_lease(BUCKET, json!({}));
    for _ in 0..1000 {
        api.inject_fault(Method::PATCH, Fault::Refused(409));
    }
    let _process = Process::start(&api, "a");
    sleep(RETRY * 30).await;
    let requests = api.requests(&Method::PATCH).len();
    assert!((20..=75).contains(&requests), "{requests} in a minute");
}

/// Processes start, stop and are killed while requests are refused, delayed and lost at random. At no moment do two
/// of them lead. A killed process counts as the leader until its deadline.
#[tokio::test(start_paused = true)]
async fn two_processes_never_lead_at_once_under_random_faults() {
    let (mut handovers, mut led_samples, mut samples) = (0, 0, 0);
    for seed in 0..10 {
        let mut random = StdRng::seed_from_u64(seed);
        let api = FakeApi::default();
        api.inject_random_faults(seed, 30);
        let mut running: Vec<Process> = (0..3).map(|n| Process::start(&api, &format!("p{n}"))).collect();
        let mut ended: Vec<Leadership> = Vec::new();
        let mut last_leader = None;
        for tick in 0..6_000 {
            sleep(Duration::from_millis(50)).await;
            if random.random_ratio(1, 400) {
                let mut process = running.swap_remove(random.random_range(0..running.len()));
                ended.push(process.leadership.clone());
                if random.random() {
                    process.stop();
                    process.report_drained();
                    (&mut process.electors).await.unwrap();
                }
                drop(process);
                running.push(Process::start(&api, &format!("q{tick}")));
            }
            let leaders: Vec<_> = running.iter().filter(|process| process.leads()).collect();
            let ended_leaders = ended.iter().filter(|leadership| leadership.leads(&key())).count();
            assert!(
                leaders.len() + ended_leaders <= 1,
                "seed {seed}, tick {tick}: {} running and {ended_leaders} ended processes lead",
                leaders.len()
            );
            if let Some(leader) = leaders.first() {
                led_samples += 1;
                handovers +=
                    u32::from(last_leader.replace(leader.identity.clone()) != Some(leader.identity.clone()));
            }
            samples += 1;
        }
    }
    println!("{handovers} handovers; led in {led_samples} of {samples} samples");
    assert!(
        handovers > 20 && led_samples * 2 > samples,
        "{handovers} handovers; led in {led_samples} of {samples} samples"
    );
}
