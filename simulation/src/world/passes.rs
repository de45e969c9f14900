//! The passes of the replicas, as the observer saw them.

use super::{STALE, World};
use crate::{
    faults::Single,
    observer::{self, PassChange},
    time::Time,
    trace::Pass,
};

impl World<'_> {
    /// Moves the observed passes into the trace.
    pub(super) fn record_passes(&mut self) {
        for event in observer::take_events() {
            let replica = self.slots[event.replica].replica.as_ref();
            let at = replica.zip(event.at).map_or(self.now, |(replica, at)| replica.time_of(at));
            match event.change {
                PassChange::Begins { controller, key } => {
                    self.pass_begins(event.pass, event.replica, at, controller, key)
                }
                PassChange::Ends { result, error } => {
                    if let Some(pass) = self.trace.passes.get_mut(&event.pass) {
                        (pass.ended, pass.result, pass.error) = (Some(at), result, error);
                        if pass.result.as_deref() == Some("panic") {
                            let (message, key) = (panicked(pass), pass.key.clone());
                            self.violate("no pass panics", message, Some(key));
                        }
                    }
                }
            }
        }
    }

    pub(super) fn pass_begins(&mut self, id: u64, replica: usize, at: Time, controller: String, key: String) {
        self.passes += 1;
        if self.faults.single() == Some(Single::StaleRead(self.passes)) {
            self.slots[replica].stale_until = at + STALE;
            self.trace.note(at, Some(replica), "fault: the caches stay as they are for a while");
        }
        let is_open = |pass: &&Pass| {
            pass.ended.is_none()
                && pass.key == key
                && pass.controller == controller
                && pass.replica == replica
        };
        if let Some(open) = self.trace.passes.values().find(is_open) {
            let message = format!(
                "{key}: a pass begins, and another one of replica-{replica} runs since {}",
                open.begun
            );
            self.violate("no key has two passes at once", message, Some(key.clone()));
        }
        self.trace
            .passes
            .insert(id, Pass { replica, controller, key, begun: at, ended: None, result: None, error: None });
    }
}

fn panicked(pass: &Pass) -> String {
    let error = pass.error.as_deref().unwrap_or_default();
    let mut message = format!("a pass of {} failed: {error}", pass.key);
    if error.contains("enable_io") {
        message.push_str("\n  A simulation has no sockets: provide a stub of what is at the other end");
    }
    message
}
