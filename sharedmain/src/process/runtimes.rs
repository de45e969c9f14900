//! The two runtimes of a process, which are created here only.
//!
//! User code runs on the *workers*: controllers, tasks and webhooks. What has to go on while user code blocks the
//! threads of the workers runs on the *control* runtime, which has a thread of its own: probes, metrics, leader
//! election with the watch of Leases, and the shutdown. A test runs both on one runtime, by passing its own handle.
use std::{future::Future, io, num::NonZero, thread};

use tokio::runtime::{Builder, Handle, Runtime};

pub(super) struct Runtimes {
    workers: Runtime,
    control: Runtime,
}

impl Runtimes {
    pub(super) fn build() -> io::Result<Self> {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let control =
            Builder::new_multi_thread().worker_threads(1).thread_name("control").enable_all().build()?;
        Ok(Self { workers: build_workers(processors)?, control })
    }

    /// Runs a future on the workers to its end. It gets the handle of the control runtime.
    pub(super) fn run<F: Future>(self, process: impl FnOnce(Handle) -> F) -> F::Output {
        let output = self.workers.block_on(process(self.control.handle().clone()));
        // Blocking code that a task left behind must not keep the process alive.
        self.workers.shutdown_background();
        self.control.shutdown_background();
        output
    }
}

/// Builds the runtime of the workers, with one thread for each processor: reconciles mostly wait for the API server, so
/// more threads would not help. Two is the minimum, so that a reconcile that blocks its thread does not stop the
/// others.
pub(crate) fn build_workers(processors: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(processors.max(2)).enable_all().build()
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, time::Duration};

    use super::*;

    #[test]
    fn a_blocked_thread_does_not_block_other_tasks_even_on_one_processor() {
        let runtime = build_workers(1).unwrap();
        let ((begin, has_begun), (end, may_end)) = (channel(), channel());
        let blocking = runtime.spawn(async move {
            begin.send(()).unwrap();
            may_end.recv_timeout(Duration::from_secs(30))
        });
        has_begun.recv().unwrap();
        runtime.spawn(async move { end.send(()) });
        assert_eq!(runtime.block_on(blocking).unwrap(), Ok(()));
    }
}
