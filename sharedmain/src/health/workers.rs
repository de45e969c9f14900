//! The threads that run user code, which blocking code may occupy.

use std::time::Duration;

use reknit_leadership::internal::Heartbeat;
use reknit_reconciler::Health;
use tokio::time::sleep;

use super::probes::Check;

/// The silence from which on blocked threads are reported.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// An informer counts as stuck if it has made no request for this time, a reconcile if it has run for this time, and the
/// threads if they have been blocked for this time. A watch ends within minutes, and a failed request is retried within a
/// minute. For a controller that allows slower reconciles, its own limit counts instead.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(15 * 60);
/// The silence after which a process is not ready: it answers no webhook request, and stops to renew its leases.
const UNREADY_AFTER: Duration = Duration::from_secs(40);
/// The number of checks after which a log line is repeated.
const CHECKS_PER_LINE: u32 = 12;
/// The number of passes that a report names.
const MAX_NAMES: usize = 10;

/// The worker threads of a process.
#[derive(Clone)]
pub(crate) struct Workers {
    heartbeat: Heartbeat,
    controllers: Vec<Health>,
}

impl Workers {
    pub(crate) fn new(heartbeat: Heartbeat, controllers: Vec<Health>) -> Self {
        Self { heartbeat, controllers }
    }

    pub(super) fn readiness(&self) -> Check {
        self.check(UNREADY_AFTER)
    }

    pub(super) fn health(&self) -> Check {
        self.check(STUCK_AFTER)
    }

    /// Checks that the threads have not been blocked for longer than this.
    fn check(&self, limit: Duration) -> Check {
        let silence = self.heartbeat.silence();
        match self.report(silence) {
            Some(report) if silence >= limit => Check::new("workers", vec![report]),
            Some(report) => Check::new("workers", vec![]).detail(report),
            None => Check::new("workers", vec![]),
        }
    }

    /// Names the running passes, the longest first, if the threads are blocked.
    fn report(&self, silence: Duration) -> Option<String> {
        if silence < REPORT_AFTER {
            return None;
        }
        let passes = self.controllers.iter().flat_map(|controller| {
            controller
                .running_passes()
                .into_iter()
                .map(|pass| (pass.age.as_secs(), controller.name(), pass.key))
        });
        let mut passes: Vec<_> = passes.collect();
        passes.sort_by(|(age, ..), (other, ..)| other.cmp(age));
        let names = passes.iter().take(MAX_NAMES).map(|(age, name, key)| format!("{name} {key} for {age}s"));
        let names = names.collect::<Vec<_>>().join(", ");
        let names = if names.is_empty() { "none, so a task or a webhook blocks" } else { &names };
        Some(format!(
            "blocking code has occupied all worker threads for {}s; running passes: {names}",
            silence.as_secs()
        ))
    }

    /// Logs that the threads are blocked, once a minute, and that they run again. Never resolves.
    pub(crate) async fn log_blocks(self) {
        let mut blocked_checks = 0;
        loop {
            sleep(REPORT_AFTER).await;
            let Some(report) = self.report(self.heartbeat.silence()) else {
                if blocked_checks > 0 {
                    tracing::info!("the worker threads run again");
                }
                blocked_checks = 0;
                continue;
            };
            if blocked_checks % CHECKS_PER_LINE == 0 {
                tracing::warn!(
                    "{report}; move blocking code to tokio::task::spawn_blocking, as leases are not renewed meanwhile"
                );
            }
            blocked_checks += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_workers_are_named_and_fail_the_probes_after_a_while() {
        let workers = Workers::new(Heartbeat::default(), vec![]);
        let checks = || [workers.readiness(), workers.health()].map(|check| check.to_string());
        assert_eq!(checks(), ["[+]workers ok", "[+]workers ok"]);
        tokio::time::advance(Duration::from_secs(11)).await;
        let report = "blocking code has occupied all worker threads for 10s; running passes: \
                      none, so a task or a webhook blocks";
        assert_eq!(checks(), [format!("[+]workers ok: {report}"), format!("[+]workers ok: {report}")]);
        tokio::time::advance(UNREADY_AFTER).await;
        let [readiness, health] = checks();
        assert!(readiness.starts_with("[-]workers failed: ") && health.starts_with("[+]workers ok: "));
        tokio::time::advance(STUCK_AFTER).await;
        assert!(checks()[1].starts_with("[-]workers failed: "));
    }
}
