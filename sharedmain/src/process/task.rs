//! Tasks that run beside the controllers.
use std::{fmt, future::Future, time::Duration};

use futures::future::BoxFuture;
use reknit_reconciler::Result;

/// The value of `--shutdown-timeout`, which the webhook gets from the Context.
#[derive(Clone, Copy)]
pub(crate) struct ShutdownTimeout(pub(crate) Duration);

/// A future that runs beside the controllers, such as a server or a poller.
///
/// It starts together with the controllers, and should end once [`Context::shutdown`] resolves; at the shutdown
/// deadline it is dropped. After a task ends with `Ok`, the process goes on without it. If a task returns an error or
/// panics, the process ends with status 1.
///
/// ```
/// use std::time::Duration;
///
/// use reknit_injection::Context;
/// use reknit_reconciler::Result;
/// use reknit_sharedmain::Task;
///
/// /// Logs a line every minute.
/// fn clock(cx: &Context) -> Result<Task> {
///     let shutdown = cx.shutdown();
///     Ok(Task::new("clock", async move {
///         loop {
///             tokio::select! {
///                 () = shutdown.wait() => return Ok(()),
///                 () = tokio::time::sleep(Duration::from_secs(60)) => tracing::info!("still here"),
///             }
///         }
///     }))
/// }
/// # let _ = clock;
/// ```
///
/// [`Context::shutdown`]: reknit_injection::Context::shutdown
pub struct Task {
    pub(super) name: String,
    pub(super) run: BoxFuture<'static, Result<()>>,
}

impl Task {
    /// Creates a task with a name for the log.
    pub fn new(name: &str, run: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Self { name: name.into(), run: Box::pin(run) }
    }

    /// Returns the name of the task in the log.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}
