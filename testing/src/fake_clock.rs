//! A clock whose time a test sets.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use reknit_injection::Clock;
use tokio::sync::watch;

/// A clock that stands still until a test [sets](Self::set) or [advances](Self::advance) it. Clones share one time.
///
/// Running controllers follow it: a key that was requeued with a delay of an hour is reconciled once the clock has been
/// moved forward by an hour.
///
/// Provide its [`clock`](Self::clock) to the constructor of the controller, which gets it as `cx.get::<Clock>()`:
///
/// ```
/// use std::time::Duration;
///
/// use k8s_openapi::api::core::v1::Namespace;
/// use reknit_injection::{Clock, Context};
/// use reknit_reconciler::{Controller, Outcome, ReconcileKind, Result};
/// use reknit_testing::{FakeClock, Want, given};
///
/// const LIFETIME: Duration = Duration::from_secs(3600);
///
/// /// Skips namespaces that are older than an hour, and reconciles younger ones again when they are that old.
/// struct Aging {
///     clock: Clock,
/// }
///
/// impl ReconcileKind for Aging {
///     type Kind = Namespace;
///     async fn reconcile_kind(&self, namespace: &Namespace, _: &mut ()) -> Result<Outcome> {
///         let created = namespace.metadata.creation_timestamp.as_ref().ok_or("it has no creationTimestamp")?;
///         let remaining = self.clock.until(created.0 + LIFETIME);
///         Ok(if remaining.is_zero() { Outcome::skip() } else { Outcome::after(remaining) })
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     Ok(Controller::of::<Namespace>(cx).reconciler(Aging { clock: cx.get() }).build())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut shop: Namespace = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "shop", "creationTimestamp": "2026-11-25T10:00:00Z"},
/// }))?;
/// let clock = FakeClock::at("2026-11-25T10:45:00Z");
/// let given = || given(shop.clone()).provide(clock.clock());
///
/// let in_15_minutes = Want::outcome(&Outcome::after(Duration::from_secs(15 * 60)));
/// given().reconcile(controller, "shop").await.check(in_15_minutes);
///
/// clock.advance(Duration::from_secs(15 * 60));
/// given().reconcile(controller, "shop").await.check(Want::skip());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FakeClock(watch::Sender<Timestamp>);

impl FakeClock {
    /// Creates a clock that shows this RFC 3339 time: `FakeClock::at("2026-11-25T10:00:00Z")`.
    ///
    /// # Panics
    ///
    /// Panics if the text is not a time.
    pub fn at(time: &str) -> Self {
        Self(watch::Sender::new(parse(time)))
    }

    /// Returns the [`Clock`] to provide to a constructor. It shows the time of this clock.
    pub fn clock(&self) -> Clock {
        Clock::set_by(self.0.subscribe())
    }

    /// Returns the time that the clock shows.
    pub fn now(&self) -> Timestamp {
        *self.0.borrow()
    }

    /// Sets the clock to this RFC 3339 time, which may be earlier than before.
    ///
    /// # Panics
    ///
    /// Panics if the text is not a time.
    pub fn set(&self, time: &str) {
        self.0.send_replace(parse(time));
    }

    /// Moves the clock forward.
    ///
    /// # Panics
    ///
    /// Panics if the new time is after the year 9999.
    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|time| *time += by);
    }
}

#[expect(clippy::panic, reason = "a failed assertion of a test panics")]
fn parse(time: &str) -> Timestamp {
    time.parse().unwrap_or_else(|error| panic!("{time:?} is not a time in RFC 3339: {error}"))
}
