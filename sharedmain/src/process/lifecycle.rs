//! The phases of a process: it starts, runs, and stops once.
use reknit_injection::{Shutdown, ShutdownTrigger};

use crate::health::probes::Probes;

/// The probes and the shutdown signal of a process, which change together.
#[derive(Clone)]
pub(super) struct Lifecycle {
    pub(super) probes: Probes,
    /// Resolves once [`stop`](Self::stop) is called.
    pub(super) shutdown: Shutdown,
    trigger: ShutdownTrigger,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        let (trigger, shutdown) = Shutdown::new();
        Self { probes: Probes::starting("waiting for the API server"), shutdown, trigger }
    }

    /// Stops the process. Readiness fails first, so that the process gets no new requests.
    pub(super) fn stop(&self) {
        self.probes.set_stopping();
        self.trigger.start();
    }
}
