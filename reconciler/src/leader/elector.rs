//! The elector of one bucket: acquires its Lease, renews it, and releases it.

use std::{future::Future, pin::pin, time::Duration};

use kube::Client;
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::{
    LeaderElectionConfig,
    bucket_reporter::BucketReporter,
    guard::guarded_client,
    lease_error::{LeaseError, LogLimit},
};

/// The longest of each wait of a stopping elector: for an attempt in flight, and for the release of the lease.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a conflict. It doubles with each further conflict in a row, up to the retry period.
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);
/// The number of conflicts in a row from which on conflicts are logged as warnings, a repeated one once a minute.
const CONFLICTS_TO_WARN: u32 = 10;

pub(super) struct Elector {
    client: Client,
    namespace: String,
    config: LeaderElectionConfig,
    bucket: BucketReporter,
    /// True if the lease may name this process as its holder: the lease was acquired, an attempt is running, or the
    /// answer to an attempt was lost.
    may_hold: bool,
    /// The number of conflicts in a row.
    conflicts: u32,
    log_limit: LogLimit,
}

impl Elector {
    pub(super) fn new(
        client: Client,
        namespace: &str,
        config: &LeaderElectionConfig,
        bucket: BucketReporter,
    ) -> Self {
        let (namespace, config, log_limit) = (namespace.into(), config.clone(), LogLimit::default());
        Self { client, namespace, config, bucket, may_hold: false, conflicts: 0, log_limit }
    }

    /// Acquires and renews the lease until `stopping` resolves. If this process leads then, renews the lease until
    /// `drained` resolves or leadership ends. Finally releases the lease if this process may hold it.
    pub(super) async fn run(
        mut self,
        stopping: impl Future<Output = ()> + Send,
        drained: impl Future<Output = ()> + Send,
    ) {
        let expire_terms = self.bucket.clone().expire_terms();
        let lock = self.lock();
        let elect = async {
            self.attempt_while(&lock, stopping, |_| true).await;
            self.attempt_while(&lock, drained, BucketReporter::leads).await;
            self.bucket.resign();
            if self.may_hold && timeout(STOP_TIMEOUT, self.release(&lock)).await.is_err() {
                warn!(lease = self.bucket.lease(), identity = %self.bucket.identity(),
                    "lease was not released in time; others take it once it has expired");
            }
        };
        tokio::select! {
            () = elect => {}
            () = expire_terms => {} // never returns; it runs beside the election
        }
    }

    fn lock(&self) -> LeaseLock {
        let identity = self.bucket.identity();
        // A read and a write have to fit into the renew deadline, with time left for another attempt.
        let client = guarded_client(self.client.clone(), identity.as_str(), self.config.renew_deadline / 3);
        let params = LeaseLockParams {
            lease_name: self.bucket.lease().into(),
            holder_id: identity.to_string(),
            lease_ttl: self.config.lease_duration,
        };
        LeaseLock::new(client, &self.namespace, params)
    }

    /// Repeats [`attempt`](Self::attempt) while the condition holds, until `stop` resolves. An attempt in flight is
    /// then awaited, up to [`STOP_TIMEOUT`]: if it were dropped, its write might be applied after the release.
    async fn attempt_while(
        &mut self,
        lock: &LeaseLock,
        stop: impl Future<Output = ()>,
        condition: fn(&BucketReporter) -> bool,
    ) {
        let mut stop = pin!(stop);
        while condition(&self.bucket) {
            let mut attempt = pin!(self.attempt(lock));
            let pause = tokio::select! {
                pause = &mut attempt => pause,
                () = &mut stop => {
                    // An attempt that times out leaves `may_hold` set.
                    timeout(STOP_TIMEOUT, attempt).await.ok();
                    return;
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = &mut stop => return,
            }
        }
    }

    /// Attempts to acquire or renew the lease once. Returns the pause before the next attempt.
    async fn attempt(&mut self, lock: &LeaseLock) -> Duration {
        let may_have_held = std::mem::replace(&mut self.may_hold, true);
        let start = Instant::now();
        match lock.try_acquire_or_renew().await {
            Ok(LeaseLockResult::Acquired(_)) => {
                self.bucket.set_leading(start + self.config.renew_deadline);
                self.reset_errors()
            }
            Ok(LeaseLockResult::NotAcquired(lease)) => {
                self.may_hold = false;
                self.bucket.set_led_by_other(&lease);
                self.reset_errors()
            }
            Err(error) => {
                let error = LeaseError::from(&error);
                self.may_hold = may_have_held || error.may_have_written();
                self.handle_error(&error)
            }
        }
    }

    /// Resets the errors after an attempt without an error, even if another process holds the lease. Returns the pause
    /// before the next attempt.
    fn reset_errors(&mut self) -> Duration {
        self.conflicts = 0;
        self.log_limit.reset();
        self.jittered_retry_period()
    }

    /// Counts conflicts in a row, and logs the error. Returns the pause before the next attempt.
    fn handle_error(&mut self, error: &LeaseError) -> Duration {
        let is_conflict = matches!(error, LeaseError::Conflict(_));
        self.conflicts = if is_conflict { self.conflicts.saturating_add(1) } else { 0 };
        let (lease, identity, leading) = (self.bucket.lease(), self.bucket.identity(), self.bucket.leads());
        if is_conflict && self.conflicts < CONFLICTS_TO_WARN {
            debug!(lease, %identity, leading, "{error}");
        } else if self.log_limit.allows(error) {
            warn!(lease, namespace = self.namespace, %identity, leading, "{error}");
        }
        if !is_conflict {
            return self.jittered_retry_period();
        }
        jittered(CONFLICT_PAUSE * 2u32.saturating_pow(self.conflicts - 1)).min(self.jittered_retry_period())
    }

    /// The retry period, jittered so that candidates that started at the same time spread their attempts.
    fn jittered_retry_period(&self) -> Duration {
        jittered(self.config.retry_period)
    }

    /// Releases the lease. Retries until this succeeds or this process no longer holds it.
    async fn release(&mut self, lock: &LeaseLock) {
        let (lease, identity) = (self.bucket.lease(), self.bucket.identity());
        loop {
            let Err(error) = lock.step_down().await else {
                return info!(lease, %identity, "released lease");
            };
            match LeaseError::from(&error) {
                LeaseError::NotHeld => return,
                error => debug!(lease, %identity, %error, "lease not released yet"),
            }
            sleep(jittered(CONFLICT_PAUSE * 4)).await;
        }
    }
}

/// A random duration between half of `pause` and `pause`.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http::Method;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use reknit_apis::Key;
    use serde_json::{Value, json};
    use tokio::{sync::oneshot, task::JoinHandle};

    use super::{
        super::{
            Candidate, Change, Identity, Leadership,
            fake::{FakeApi, Fault},
        },
        *,
    };

    const LEASE: Duration = Duration::from_secs(15);
    const RENEW: Duration = Duration::from_secs(10);
    const RETRY: Duration = Duration::from_secs(2);

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
            let config = LeaderElectionConfig {
                lease_duration: LEASE,
                renew_deadline: RENEW,
                retry_period: RETRY,
                ..Default::default()
            };
            let identity = Identity::on(name);
            let candidate = Candidate::new(api.client(), "ns", "test", identity.clone(), &config).unwrap();
            let (leadership, electors) = candidate.electors_for("queue").unwrap();
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
            timeout(LEASE * 10, self.leadership.lost(&key())).await.expect("leadership ends in time");
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
        let lost = process.leadership.lost(&key());
        assert!(timeout(LEASE * 20, lost).await.is_err());
        assert_eq!(api.holder(), process.identity.as_str());
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_ends_at_the_renew_deadline_after_the_start_of_the_last_successful_attempt() {
        let api = FakeApi::default();
        api.put_lease(json!({}));
        api.inject_fault(Method::GET, Fault::LateAnswer(Duration::from_secs(3)));
        let start = Instant::now();
        let mut process = Process::start(&api, "a");
        process.wait_until_leading().await;
        assert_eq!(start.elapsed().as_secs(), 3);
        api.set_down(true);
        process.wait_until_lost().await;
        assert_eq!(start.elapsed().as_secs(), RENEW.as_secs());
        assert!(!process.leadership.is_known());
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
        assert!(timeout(LEASE * 4, process.leadership.lost(&key())).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_ends_at_the_next_attempt_if_another_process_took_the_lease() {
        let api = FakeApi::default();
        let mut process = Process::start(&api, "a");
        process.wait_until_leading().await;
        api.put_lease(held_by("another"));
        let lost = process.leadership.lost(&key());
        assert!(timeout(RETRY, lost).await.is_ok());
        assert!(process.leadership.is_known());
    }

    #[tokio::test(start_paused = true)]
    async fn another_process_leads_once_the_lease_of_a_killed_leader_has_expired() {
        let api = FakeApi::default();
        let mut leader = Process::start(&api, "a");
        leader.wait_until_leading().await;
        let mut standby = Process::start(&api, "b");
        sleep(RETRY).await;
        assert!(standby.leadership.is_known() && !standby.leads());
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
        api.put_lease(held_by("other"));
        let mut standby = Process::start(&api, "a");
        sleep(RETRY).await;
        standby.stop();
        (&mut standby.electors).await.unwrap();
        assert_eq!(api.holder(), "other");
        assert!(api.requests(&Method::PATCH).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_released_even_if_the_answer_to_acquiring_it_was_lost() {
        let api = FakeApi::default();
        api.put_lease(json!({}));
        api.inject_fault(Method::PATCH, Fault::AnswerLost);
        let mut process = Process::start(&api, "a");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(api.holder(), process.identity.as_str());
        process.stop();
        process.report_drained();
        (&mut process.electors).await.unwrap();
        assert_eq!(api.holder(), "");
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
        assert_eq!(api.holder(), "");
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
        api.put_lease(json!({}));
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
                    handovers += u32::from(
                        last_leader.replace(leader.identity.clone()) != Some(leader.identity.clone()),
                    );
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
}
