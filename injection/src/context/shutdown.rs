//! The shutdown signal of a process.

use std::sync::Arc;

use crate::ordered_watch as watch;

/// The shutdown signal, as controllers and servers receive it.
///
/// ```
/// use reknit_injection::Shutdown;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (trigger, shutdown) = Shutdown::new();
/// let waiting = tokio::spawn(shutdown.wait());
/// assert!(!shutdown.is_down());
/// trigger.start();
/// waiting.await.unwrap();
/// assert!(shutdown.is_down());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// The trigger of a graceful shutdown. [`start`](Self::start) starts it for every clone of its
/// [`Shutdown`].
///
/// Dropping the trigger causes no shutdown.
#[derive(Clone, Debug)]
pub struct ShutdownTrigger(Arc<watch::Sender<bool>>);

impl Shutdown {
    /// Creates a trigger and its signal.
    pub fn new() -> (ShutdownTrigger, Self) {
        let sender = watch::Sender::new(false);
        let receiver = sender.subscribe();
        (ShutdownTrigger(Arc::new(sender)), Self(receiver))
    }

    /// Returns a signal that is never given.
    pub fn never() -> Self {
        Self::new().1
    }

    /// Returns true if the shutdown has started.
    pub fn is_down(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes once the shutdown has started, even if it started before the call.
    pub fn wait(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let mut down = self.0.clone();
        async move {
            if down.wait_for(|down| *down).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl ShutdownTrigger {
    /// Starts the shutdown. Further calls do nothing.
    pub fn start(&self) {
        self.0.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_after_the_shutdown_started_returns_at_once() {
        let (trigger, shutdown) = Shutdown::new();
        trigger.start();
        drop(trigger);
        shutdown.wait().await;
        assert!(shutdown.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_trigger_without_starting_a_shutdown_causes_no_shutdown() {
        let shutdown = Shutdown::never();
        let waited = tokio::time::timeout(std::time::Duration::from_secs(3600), shutdown.wait()).await;
        assert!(waited.is_err() && !shutdown.is_down());
    }
}
