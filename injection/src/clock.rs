//! A clock that reconcilers get by injection, so that a test can set the time.

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

use crate::{Context, Inject};

/// A source of the current time: the system clock, unless another clock was [provided](Context::provide).
///
/// A reconciler that depends on the time reads it here, so that a test can set it with `FakeClock` of `reknit_testing`.
/// It is modelled on k8s.io/utils/clock.
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
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// Creates a clock whose time is the result of this function.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
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

impl Default for Clock {
    /// The system clock.
    fn default() -> Self {
        Self::new(Timestamp::now)
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
