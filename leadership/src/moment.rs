//! A moment from which time is measured also while the machine is suspended.

use std::time::Duration;

use reknit_injection::internal::suspended;
use tokio::time::Instant;

/// A moment by the monotonic clock. That clock stops while the machine is suspended, and other replicas take the Leases
/// meanwhile. So the time of suspensions since the moment is added to what the clock measures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    at: Instant,
    suspended: Duration,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), suspended: suspended() }
    }

    /// The instant that will be this long after the moment, unless the machine is suspended again until then.
    pub(crate) fn after(self, duration: Duration) -> Instant {
        let later = self.at + duration;
        later.checked_sub(self.suspended_since()).unwrap_or(self.at)
    }

    /// The time for which the machine has been suspended since the moment.
    pub(crate) fn suspended_since(self) -> Duration {
        suspended().saturating_sub(self.suspended)
    }
}

/// The end of a time within which this process may rely on a renewal. It comes earlier if the machine is suspended
/// meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    set: Moment,
}

impl Deadline {
    /// Creates the deadline this long after the renewal was sent.
    pub(crate) fn after(sent: Moment, duration: Duration) -> Self {
        Self { at: sent.after(duration), set: Moment::now() }
    }

    /// The instant of the deadline, unless the machine is suspended again until then.
    pub(crate) fn instant(self) -> Instant {
        self.set.after(self.at.saturating_duration_since(self.set.at))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{cell::Cell, rc::Rc};

    use k8s_openapi::jiff::Timestamp;
    use prometheus::Registry;
    use reknit_injection::internal::{Environment, within};

    use super::*;
    use crate::{
        LeaderElectionConfig,
        fake::FakeApi,
        internal::{Candidate, Identity},
    };

    /// An environment whose machine can be suspended.
    #[derive(Default)]
    pub(crate) struct Machine(Cell<Duration>);

    impl Environment for Machine {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn random(&self, _: &str) -> u64 {
            0
        }

        fn suspended(&self) -> Duration {
            self.0.get()
        }
    }

    impl Machine {
        /// Runs a test on a paused clock. The function that it gets suspends the machine for a while.
        pub(crate) fn run(test: impl AsyncFnOnce(&dyn Fn(Duration))) {
            let machine = Rc::new(Self::default());
            let suspend = |duration| machine.0.set(machine.0.get() + duration);
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            let environment: Rc<dyn Environment> = machine.clone();
            within(&environment, || runtime.unwrap().block_on(test(&suspend)));
        }
    }

    #[test]
    fn a_process_is_no_member_any_more_after_a_suspension_of_its_machine_in_which_its_own_lease_ended() {
        Machine::run(async |suspend| {
            let config = LeaderElectionConfig::default();
            let identity = Identity::on("a");
            let client = FakeApi::default().client();
            let candidate =
                Candidate::new(client, "ns", "test", identity, &config, &Registry::new()).unwrap();
            let deadline = Deadline::after(Moment::now(), config.renew_deadline);
            *candidate.member_until.lock() = Some(deadline);
            suspend(config.renew_deadline / 2);
            assert!(candidate.is_member(Instant::now()));
            suspend(config.renew_deadline / 2);
            assert!(!candidate.is_member(Instant::now()));
        });
    }
}
