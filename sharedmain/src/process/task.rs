//! Something that runs beside the controllers.
use std::{fmt, future::Future, pin::Pin};

use reknit_reconciler::Result;

/// A future that runs beside the controllers: a server, a poller, a cache that fills itself.
///
/// It starts when the controllers do, and is expected to end by itself once [`Context::shutdown`] says so; what has
/// not ended by the shutdown deadline is dropped. One that ends with `Ok` is done, and the process goes on without
/// it; one that ends with an error, or panics, ends the process with status 1.
///
/// ```
/// use std::time::Duration;
///
/// use reknit_injection::Context;
/// use reknit_reconciler::Result;
/// use reknit_sharedmain::Task;
///
/// /// Says every minute that it is there.
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
    name: String,
    run: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
}

impl Task {
    /// The name is what the log calls it.
    pub fn new(name: &str, run: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Self { name: name.into(), run: Box::pin(run) }
    }

    /// What the log calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn into_parts(self) -> (String, Pin<Box<dyn Future<Output = Result<()>> + Send>>) {
        (self.name, self.run)
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}
