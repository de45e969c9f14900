//! The request to stop the process.
use reknit_injection::{Shutdown, ShutdownTrigger};

use crate::health::probes::Probes;

/// Stops the process, once.
#[derive(Clone)]
pub(super) struct Stop {
    trigger: ShutdownTrigger,
    probes: Probes,
}

impl Stop {
    pub(super) fn new(probes: &Probes) -> (Self, Shutdown) {
        let (trigger, shutdown) = Shutdown::new();
        (Self { trigger, probes: probes.clone() }, shutdown)
    }

    /// Fails readiness first, so that the process gets no new requests.
    pub(super) fn now(&self) {
        self.probes.stopping();
        self.trigger.pull();
    }
}
