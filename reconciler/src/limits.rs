//! The limits of every pass: panics are caught, slow passes are reported, and passes beyond the deadline are dropped.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, pin::Pin, time::Duration};

use futures::FutureExt;
use reknit_apis::Key;
use tokio::time::Instant;

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

/// The error of a pass that did not return.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CutShort {
    #[error("the reconciler panicked: {0}")]
    Panic(String),
    #[error("the pass took longer than {} s and was dropped", .0.as_secs_f64())]
    Deadline(Duration),
}

impl CutShort {
    pub(crate) fn of(error: &Error) -> Option<&Self> {
        error.source().downcast_ref()
    }
}

impl Limits {
    /// Runs a pass, and calls `slow` once if it is slow. The pass is with_pinned_config by the caller, since a future that takes
    /// another one by value holds it twice.
    pub(crate) async fn apply(
        &self,
        pass: Pin<&mut impl Future<Output = Result<Outcome>>>,
        slow: impl Fn(Duration),
    ) -> Result<Outcome> {
        let mut pass = AssertUnwindSafe(pass).catch_unwind();
        let mut deadline = std::pin::pin!(elapsed(self.deadline));
        let mut slowness = std::pin::pin!(elapsed(Some(self.slow_after)));
        let mut is_slow = false;
        loop {
            tokio::select! {
                biased;
                ended = &mut pass => return ended.unwrap_or_else(|why| Err(CutShort::Panic(text(&*why)).into())),
                limit = &mut deadline => return Err(Error::from(CutShort::Deadline(limit)).reason("DeadlineExceeded")),
                limit = &mut slowness, if !is_slow => {
                    is_slow = true;
                    slow(limit);
                }
            }
        }
    }
}

/// Waits for the time. Never returns without one.
pub(crate) async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn elapsed(limit: Option<Duration>) -> Duration {
    let Some(limit) = limit else { return std::future::pending().await };
    tokio::time::sleep(limit).await;
    limit
}

/// Runs a closure of user code for one object. A panic is logged and returns `None`, so other objects are unaffected.
pub(crate) fn caught<T>(about: &Key, run: impl FnOnce() -> T) -> Option<T> {
    let log = |why: &Box<dyn Any + Send>| {
        tracing::error!(key = %about, panic = text(&**why), "a filter or mapping panicked at an object, which it is not applied to");
    };
    std::panic::catch_unwind(AssertUnwindSafe(run)).inspect_err(log).ok()
}

fn text(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    literal.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_that_panics_returns_nothing() {
        let about = Key::new("default", "x");
        assert_eq!(caught(&about, || 1), Some(1));
        assert_eq!(caught::<u8>(&about, || panic!("as planned")), None);
    }
}
