//! Tasks that run beside the controllers.
use std::{fmt, future::Future, time::Duration};

use futures::future::BoxFuture;
use reknit_reconciler::Result;

/// The value of `--shutdown-timeout`, which the webhook gets from the Context.
#[cfg_attr(not(feature = "webhook"), allow(dead_code, reason = "only the webhook reads it"))]
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
///
/// Constructors run in this order: those of the controllers, of the webhook, and of the tasks, each in the order in which
/// `Main` got them. So a task shares a value of a controller, such as its `Tracked`, its `Config` or its `Queue`, if the
/// controller's constructor calls `cx.provide(value.clone())` and the task's calls `cx.provided::<T>()?`.
pub struct Task {
    pub(super) name: String,
    pub(super) run: BoxFuture<'static, Result<()>>,
    pub(super) readiness: Option<Readiness>,
}

/// Fails with the reason for which a task cannot do its work.
pub(crate) type Readiness = Box<dyn Fn() -> std::result::Result<(), String> + Send + Sync>;

impl Task {
    /// Creates a task with a name for the log.
    pub fn new(name: &str, run: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Self { name: name.into(), run: Box::pin(run), readiness: None }
    }

    /// Adds a check to the readiness probe, with the name of the task. While it fails, the process is not ready, and the
    /// probe shows the reason: for example until a server has its first snapshot. It is called at each probe, and must
    /// return at once.
    ///
    /// ```
    /// use std::sync::{Arc, OnceLock};
    ///
    /// use reknit_injection::Context;
    /// use reknit_reconciler::Result;
    /// use reknit_sharedmain::Task;
    ///
    /// fn server(cx: &Context) -> Result<Task> {
    ///     let (snapshot, shutdown) = (Arc::new(OnceLock::<String>::new()), cx.shutdown());
    ///     let served = snapshot.clone();
    ///     let task = Task::new("server", async move {
    ///         let _ = snapshot.set("the first snapshot".into());
    ///         shutdown.wait().await;
    ///         Ok(())
    ///     });
    ///     Ok(task.readiness(move || served.get().map(drop).ok_or("there is no snapshot yet".into())))
    /// }
    /// # let _ = server;
    /// ```
    #[must_use]
    pub fn readiness(
        mut self,
        check: impl Fn() -> std::result::Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.readiness = Some(Box::new(check));
        self
    }

    /// Returns the name of the task in the log.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Runs the task in a test, for example by `Controllers::task` of `reknit_testing`.
impl IntoFuture for Task {
    type Output = Result<()>;
    type IntoFuture = BoxFuture<'static, Result<()>>;

    fn into_future(self) -> Self::IntoFuture {
        self.run
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}
