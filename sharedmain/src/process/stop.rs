//! The end of a process, asked for.
use reknit_injection::{Shutdown, ShutdownTrigger};

use crate::health::probes::Probes;

/// Asks everything in the process to stop; once is enough.
#[derive(Clone)]
pub(crate) struct Stop {
    trigger: ShutdownTrigger,
    probes: Probes,
}

impl Stop {
    pub(crate) fn new(probes: &Probes) -> (Self, Shutdown) {
        let (trigger, shutdown) = Shutdown::new();
        (Self { trigger, probes: probes.clone() }, shutdown)
    }

    /// Readiness goes first, so that nothing new is sent here.
    pub(crate) fn now(&self) {
        self.probes.stopping();
        self.trigger.pull();
    }
}
