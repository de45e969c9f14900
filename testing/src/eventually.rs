//! Waiting for a condition.

use std::{any::type_name, fmt::Display, future::Future, panic::Location, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

const PAUSE: Duration = Duration::from_millis(25);

/// The prefixes of the type names of the checks other than `bool`.
const CHECKS: [&str; 2] = ["core::option::Option<", "core::result::Result<"];

/// The result of a check of [`eventually`]: the value that the caller waits for, or else a description of what the
/// check found.
///
/// `bool`, `Option<T>` and `Result<T, E>` are checks. A failure shows the `E` of the last check, so a check that
/// returns `Err(format!("ready is {status}"))` makes a failure that needs no debugger.
///
/// Any value in a `Some` or an `Ok` ends the wait. [`eventually`] therefore refuses one check type within another, such
/// as the `Ok(None)` of kube's `get_opt` or an `Ok(false)`. To wait for an object use `get`, which returns an error
/// until the object exists.
pub trait Check {
    /// The value that the check waits for.
    type Found;

    /// Returns the value, or else a description of what the check found.
    fn found(self) -> Result<Self::Found, String>;
}

impl Check for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "it was false".into())
    }
}

impl<T> Check for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "there was none".into())
    }
}

impl<T, E: Display> Check for Result<T, E> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|error| format!("{error:#}"))
    }
}

/// Repeats a check until it succeeds, and returns its value.
///
/// The check runs every 25 ms. A check that hangs is dropped when the time is up.
///
/// # Panics
///
/// Panics when the `limit` has passed, with `what`, the last observation and the place of the call. Panics at once if a
/// successful check returns a `bool`, an `Option` or a `Result`, because any value of these would end the wait.
///
/// ```
/// # use std::{sync::atomic::{AtomicU32, Ordering}, time::Duration};
/// use reknit_testing::eventually;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let passes = AtomicU32::new(0);
/// let last = eventually("three passes", Duration::from_secs(5), async || {
///     match passes.fetch_add(1, Ordering::Relaxed) {
///         seen @ 3.. => Ok(seen),
///         fewer => Err(format!("{fewer} passes")),
///     }
/// })
/// .await;
/// assert_eq!(last, 3);
/// # }
/// ```
#[track_caller]
pub fn eventually<C: Check, F: Future<Output = C>>(
    what: impl Display,
    limit: Duration,
    check: impl FnMut() -> F,
) -> impl Future<Output = C::Found> {
    let caller = Location::caller();
    if is_check::<C::Found>() {
        let check = type_name::<C>();
        fail(&format!(
            "the wait for {what} would end at once: {check} is a check within another check ({caller})"
        ));
    }
    async move {
        let found = until(limit, check).await;
        found.unwrap_or_else(|last| {
            fail(&format!("{what} did not happen within {limit:?}: {last} ({caller})"))
        })
    }
}

/// Returns true if the type is a check. Compares the type's name, because a trait bound would refuse all other types.
fn is_check<T>() -> bool {
    let name = type_name::<T>();
    name == type_name::<bool>() || CHECKS.iter().any(|check| name.starts_with(check))
}

#[expect(clippy::panic, reason = "a failed assertion of a test panics")]
fn fail(message: &str) -> ! {
    panic!("{message}")
}

/// Like [`eventually`], but returns the last observation as an error instead of panicking.
pub(crate) async fn until<C: Check, F: Future<Output = C>>(
    limit: Duration,
    mut check: impl FnMut() -> F,
) -> Result<C::Found, String> {
    let deadline = Instant::now() + limit;
    let mut last = String::from("no check completed");
    loop {
        match timeout_at(deadline, check()).await.map(Check::found) {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(observation)) => last = observation,
            Err(_) => return Err(format!("{last}, and the next check hung")),
        }
        if Instant::now() + PAUSE >= deadline {
            return Err(last);
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::pending};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_value_of_the_first_successful_check_is_returned() {
        let checks = Cell::new(0);
        let found = eventually("a fifth check", SECOND, async || {
            checks.set(checks.get() + 1);
            (checks.get() == 5).then_some(checks.get())
        });
        assert_eq!(found.await, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_observation_is_reported_when_time_is_up() {
        let checks = Cell::new(0);
        let result = until(SECOND, async || {
            checks.set(checks.get() + 1);
            Err::<(), _>(format!("{} checks", checks.get()))
        });
        assert_eq!(result.await, Err("40 checks".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_hangs_is_dropped_when_time_is_up() {
        assert_eq!(
            until(SECOND, pending::<bool>).await,
            Err("no check completed, and the next check hung".into())
        );
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "a miracle did not happen within 1s: it was false (testing/src/eventually.rs:")]
    async fn a_failure_names_the_condition_and_the_call_site() {
        eventually("a miracle", SECOND, async || false).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(
        expected = "the wait for a pod would end at once: core::result::Result<core::option::Option<i32>, "
    )]
    async fn waiting_for_an_ok_none_panics() {
        eventually("a pod", SECOND, async || Ok::<Option<i32>, String>(None)).await;
    }

    #[test]
    fn bool_option_and_result_are_checks() {
        assert!(is_check::<bool>() && is_check::<Option<u8>>() && is_check::<Result<u8, String>>());
        assert!(!is_check::<()>() && !is_check::<Vec<bool>>() && !is_check::<Box<Option<u8>>>());
    }
}
