//! The limits of every pass: panics are caught, slow passes are reported, and passes beyond the deadline are dropped.

use std::{
    any::Any, fmt, future::Future, ops::ControlFlow, panic::AssertUnwindSafe, pin::Pin, time::Duration,
};

use futures::FutureExt;
use reknit_apis::Key;
use reknit_injection::internal::{CurrentPass, StackAnswer, WaitPlace, panic_message};

use crate::{Error, Outcome, Result, stack::poll_with_stack, waits::Waits};

/// The least time between two reports of a slow pass.
const MIN_GAP: Duration = Duration::from_secs(1);

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
    #[error("the pass took longer than {} s and was dropped{}", .0.as_secs_f64(), while_it_waited(.1))]
    Deadline(Duration, Waits),
}

fn while_it_waited(waits: &Waits) -> String {
    let waits = waits.to_string();
    if waits.is_empty() { waits } else { format!(" while it waited {waits}") }
}

/// A pass that is slow.
#[derive(Debug)]
pub(crate) struct SlowPass {
    age: Duration,
    waits: Waits,
}

impl SlowPass {
    pub(crate) fn log(&self) {
        let waits = self.waits.to_string();
        tracing::warn!(age = ?self.age, waits = (!waits.is_empty()).then_some(waits), "the pass is slow");
    }
}

/// Formats as the message of its event.
impl fmt::Display for SlowPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pass has been running for {} s", self.age.as_secs_f64())?;
        let waits = self.waits.to_string();
        if waits.is_empty() { Ok(()) } else { write!(f, " and waits {waits}") }
    }
}

impl PassAborted {
    pub(crate) fn of(error: &Error) -> Option<&Self> {
        error.source().downcast_ref()
    }
}

/// An interruption of a pass that waits.
enum Interruption {
    Deadline(Duration),
    Slow(Duration),
    Question(StackAnswer),
}

impl Limits {
    /// Runs a pass, and calls `on_slow` when it is slow, again after twice that time, and so on. A panic or a missed
    /// deadline is returned as [`PassAborted`]. The caller pins the pass: an async function that takes a future by value
    /// stores it twice.
    pub(crate) async fn apply(
        &self,
        pass: Pin<&mut impl Future<Output = Result<Outcome>>>,
        on_slow: impl Fn(&SlowPass),
    ) -> Result<Outcome> {
        let current = CurrentPass::get();
        let current = current.as_deref();
        let mut pass = AssertUnwindSafe(pass).catch_unwind();
        let mut deadline = std::pin::pin!(timer(self.deadline));
        let mut slow_timer = std::pin::pin!(timer(Some(self.slow_after)));
        let mut age = Duration::ZERO;
        loop {
            let interruption = tokio::select! {
                biased;
                result = &mut pass => return caught(result),
                limit = &mut deadline => Interruption::Deadline(limit),
                gap = &mut slow_timer => Interruption::Slow(gap),
                answer = next_question(current) => Interruption::Question(answer),
            };
            let place = match poll_with_stack(&mut pass).await {
                ControlFlow::Break(result) => return caught(result),
                ControlFlow::Continue(place) => place,
            };
            let waits = |place: &WaitPlace| Waits::of(current, place);
            match interruption {
                Interruption::Deadline(limit) => {
                    return Err(
                        Error::from(PassAborted::Deadline(limit, waits(&place))).reason("DeadlineExceeded")
                    );
                }
                Interruption::Slow(gap) => {
                    age = age.saturating_add(gap);
                    on_slow(&SlowPass { age, waits: waits(&place) });
                    slow_timer.set(timer(Some(gap.saturating_mul(2).max(MIN_GAP))));
                }
                Interruption::Question(answer) => drop(answer.send(place)),
            }
        }
    }
}

/// Turns a panic of a pass into its error.
fn caught(result: std::thread::Result<Result<Outcome>>) -> Result<Outcome> {
    result.unwrap_or_else(|panic| Err(PassAborted::Panic(panic_message(&*panic).into()).into()))
}

/// Waits until the stack of the pass is asked for.
async fn next_question(pass: Option<&CurrentPass>) -> StackAnswer {
    match pass {
        Some(pass) => pass.stack.asked().await,
        None => std::future::pending().await,
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
