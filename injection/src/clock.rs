//! A source of the current time that a test can set.

use std::{fmt, future::pending, time::Duration};

use k8s_openapi::jiff::Timestamp;
use reknit_apis::internal::now;
use tokio::{sync::watch, time::Instant};

use crate::{Context, Inject, pass::CurrentPass};

/// A source of the current time: the system clock, unless another clock was [provided](Context::provide).
///
/// A reconciler that depends on the time reads it here, so that a test can set it with `FakeClock` of `reknit_testing`.
/// The type is modelled on k8s.io/utils/clock.
///
/// ```
/// use std::time::Duration;
///
/// use k8s_openapi::jiff::Timestamp;
/// use reknit_injection::{Clock, Context};
///
/// struct Reconciler {
///     clock: Clock,
/// }
///
/// fn reconciler(cx: &Context) -> Reconciler {
///     Reconciler { clock: cx.get() }
/// }
///
/// impl Reconciler {
///     fn requeue_after(&self, next_run: Timestamp) -> Duration {
///         self.clock.until(next_run)
///     }
/// }
/// # let _ = (reconciler, Reconciler::requeue_after);
/// ```
///
/// The work queue uses this clock too: when a test sets it forward, the delayed keys that are then due are enqueued.
/// Retries of failed reconciles use the system clock instead.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    Set(Set),
}

/// The time that a test sets, and the monotonic instant that corresponds to its first value.
#[derive(Clone)]
struct Set {
    times: watch::Receiver<Timestamp>,
    start: (Instant, Timestamp),
}

impl Clock {
    /// Creates a clock that shows the latest time of this channel.
    pub fn set_by(times: watch::Receiver<Timestamp>) -> Self {
        let start = (Instant::now(), *times.borrow());
        Self(Source::Set(Set { times, start }))
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        let time = match &self.0 {
            Source::System => now(),
            Source::Set(set) => *set.times.borrow(),
        };
        if let Some(recording) = CurrentPass::recording() {
            recording.add(|reads| reads.add_time(time));
        }
        time
    }

    /// Returns the time that has passed since `then`; zero if `then` is in the future.
    pub fn since(&self, then: Timestamp) -> Duration {
        self.now().duration_since(then).try_into().unwrap_or_default()
    }

    /// Returns the time that remains until `then`, for example for `Outcome::after`; zero if `then` is in the past.
    pub fn until(&self, then: Timestamp) -> Duration {
        then.duration_since(self.now()).try_into().unwrap_or_default()
    }
}

/// Returns the time of the clock as an instant, so that a delay can be added to it. If the clock is set back before its
/// first time, the result is the instant of that first time.
pub fn clock_instant(clock: &Clock) -> Instant {
    match &clock.0 {
        Source::System => Instant::now(),
        Source::Set(Set { times, start: (instant, first) }) => {
            let passed = times.borrow().duration_since(*first).try_into().unwrap_or_default();
            instant.checked_add(passed).unwrap_or(*instant)
        }
    }
}

/// Returns a future that completes when the clock is set after this call. For the system clock it never completes.
pub fn next_clock_change(clock: &Clock) -> impl Future<Output = ()> + Send + use<> {
    let times = match &clock.0 {
        Source::System => None,
        Source::Set(set) => Some(set.times.clone()),
    };
    let times = times.map(|mut times| {
        times.mark_unchanged();
        times
    });
    async move {
        if let Some(mut times) = times
            && times.changed().await.is_ok()
        {
            return;
        }
        pending().await
    }
}

/// Returns true for a clock that a test controls, also before the test sets it, and false for the system clock.
pub fn is_test_clock(clock: &Clock) -> bool {
    matches!(clock.0, Source::Set(_))
}

impl Default for Clock {
    /// The system clock.
    fn default() -> Self {
        Self(Source::System)
    }
}

impl Inject for Clock {
    fn inject(_: &Context) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
