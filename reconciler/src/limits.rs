//! The limits of every pass: panics are caught, slow passes are reported, and passes beyond the deadline are dropped.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, pin::Pin, time::Duration};

use futures::FutureExt;
use reknit_apis::Key;
use reknit_injection::internal::panic_message;

use crate::{Error, Outcome, Result};

/// The time limits of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) slow_after: Duration,
    pub(crate) deadline: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slow_after: Duration::from_secs(60), deadline: None }
    }
}

/// The error of a pass that panicked or was dropped at its deadline.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassAborted {
    #[error("the reconciler panicked: {0}")]
    Panic(String),
    #[error("the pass took longer than {} s and was dropped", .0.as_secs_f64())]
    Deadline(Duration),
}

impl PassAborted {
    pub(crate) fn of(error: &Error) -> Option<&Self> {
        error.source().downcast_ref()
    }
}

impl Limits {
    /// Runs a pass, and calls `on_slow` once if it is slow. A panic or a missed deadline is returned as
    /// [`PassAborted`]. The caller pins the pass: an async function that takes a future by value stores it twice.
    pub(crate) async fn apply(
        &self,
        pass: Pin<&mut impl Future<Output = Result<Outcome>>>,
        on_slow: impl Fn(Duration),
    ) -> Result<Outcome> {
        let mut pass = AssertUnwindSafe(pass).catch_unwind();
        let mut deadline = std::pin::pin!(timer(self.deadline));
        let mut slow_timer = std::pin::pin!(timer(Some(self.slow_after)));
        let mut is_slow = false;
        loop {
            tokio::select! {
                biased;
                result = &mut pass => {
                    return result.unwrap_or_else(|panic| Err(PassAborted::Panic(panic_message(&*panic).into()).into()));
                }
                limit = &mut deadline => {
                    return Err(Error::from(PassAborted::Deadline(limit)).reason("DeadlineExceeded"));
                }
                limit = &mut slow_timer, if !is_slow => {
                    is_slow = true;
                    on_slow(limit);
                }
            }
        }
    }
}

/// Waits for this time, and returns it. Never returns if it is `None`.
async fn timer(limit: Option<Duration>) -> Duration {
    let Some(limit) = limit else { return std::future::pending().await };
    tokio::time::sleep(limit).await;
    limit
}

/// Runs a closure of user code for one object. A panic is logged and returns `None`, so other objects are unaffected.
pub(crate) fn catch_panic<T>(key: &Key, run: impl FnOnce() -> T) -> Option<T> {
    let log = |panic: &Box<dyn Any + Send>| {
        let panic = panic_message(&**panic);
        tracing::error!(%key, panic, "a filter or mapping panicked: it is not applied to this object");
    };
    std::panic::catch_unwind(AssertUnwindSafe(run)).inspect_err(log).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_that_panics_returns_nothing() {
        let key = Key::new("default", "x");
        assert_eq!(catch_panic(&key, || 1), Some(1));
        assert_eq!(catch_panic::<u8>(&key, || panic!("as planned")), None);
    }
}
