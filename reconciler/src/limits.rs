//! What holds for every pass, whatever it does: panics are caught, slow ones are told of, endless ones dropped.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, pin::Pin, time::Duration};

use futures::FutureExt;
use reknit_apis::Key;

use crate::{Error, Outcome, Result};

/// How long a pass may take.
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

/// A pass that did not come to an end of its own.
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
    /// Runs a pass; says once when it is slow. (A future that is handed over by value is held twice by the one that
    /// awaits it.)
    pub(crate) async fn hold(
        &self,
        pass: Pin<&mut impl Future<Output = Result<Outcome>>>,
        slow: impl Fn(Duration),
    ) -> Result<Outcome> {
        let mut pass = AssertUnwindSafe(pass).catch_unwind();
        let deadline = after(self.deadline);
        let mut deadline = std::pin::pin!(deadline);
        let mut slowness = std::pin::pin!(after(Some(self.slow_after)));
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                ended = &mut pass => return ended.unwrap_or_else(|why| Err(CutShort::Panic(text(&*why)).into())),
                limit = &mut deadline => return Err(Error::from(CutShort::Deadline(limit)).reason("DeadlineExceeded")),
                limit = &mut slowness, if !told => {
                    told = true;
                    slow(limit);
                }
            }
        }
    }
}

async fn after(limit: Option<Duration>) -> Duration {
    match limit {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

/// What a user's closure makes of one object; nothing where it panics, which is logged. The others are none the worse.
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
    fn a_closure_that_panics_answers_nothing() {
        let about = Key::new("default", "x");
        assert_eq!(caught(&about, || 1), Some(1));
        assert_eq!(caught::<u8>(&about, || panic!("as planned")), None);
    }
}
