//! The news that the process is to end.

use std::sync::Arc;

use tokio::sync::watch;

/// Says whether the process is to end, to everything that has to know: controllers that stop taking keys, servers
/// that drain.
///
/// ```
/// use reknit_injection::Shutdown;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (trigger, shutdown) = Shutdown::new();
/// let ending = tokio::spawn(shutdown.wait());
/// assert!(!shutdown.is_down());
/// trigger.pull();
/// ending.await.unwrap();
/// assert!(shutdown.is_down());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// Ends the process in an orderly way: every [`Shutdown`] of this trigger hears of it.
///
/// Dropping the last one without pulling it is no shutdown.
#[derive(Clone, Debug)]
pub struct ShutdownTrigger(Arc<watch::Sender<bool>>);

impl Shutdown {
    /// A trigger and what hears of it.
    pub fn new() -> (ShutdownTrigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (ShutdownTrigger(Arc::new(sender)), Self(receiver))
    }

    /// One that never comes.
    pub fn never() -> Self {
        Self::new().1
    }

    /// Whether the trigger has been pulled.
    pub fn is_down(&self) -> bool {
        *self.0.borrow()
    }

    /// Ends once the trigger has been pulled, however late it is called.
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
    /// Tells everybody who waits, and who will ask. Once is enough; more often does nothing.
    pub fn pull(&self) {
        self.0.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_too_late_does_not_wait() {
        let (trigger, shutdown) = Shutdown::new();
        trigger.pull();
        drop(trigger);
        shutdown.wait().await;
        assert!(shutdown.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn a_trigger_dropped_unpulled_is_no_shutdown() {
        let shutdown = Shutdown::never();
        let waited = tokio::time::timeout(std::time::Duration::from_secs(3600), shutdown.wait()).await;
        assert!(waited.is_err() && !shutdown.is_down());
    }
}
