//! Waits for what a controller brings about in its own time.

use std::{any::type_name, fmt::Display, future::Future, panic::Location, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

const PAUSE: Duration = Duration::from_millis(25);

/// How the names of types begin whose values say themselves whether there is anything; `bool` is another one.
const DOUBTFUL: [&str; 2] = ["core::option::Option<", "core::result::Result<"];

/// What a check of [`eventually`] answers: whether it saw what it waits for, and what it saw instead.
///
/// `bool`, `Option<T>` and `Result<T, E>` are checks; the `E` of the last one is shown when time is up, so a check that
/// returns `Err(format!("ready is {status}"))` makes a failure that needs no debugger.
///
/// Whatever is in a `Some` or an `Ok` is found. So one of these within another is refused by [`eventually`]: `get_opt` of
/// kube, whose `Ok(None)` would be found, and an `Ok(false)`. Of what is to be there, `get` answers an error until it is.
pub trait Check {
    /// What the check found.
    type Found;

    /// What it found, or in words what it saw instead.
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

/// Checks again and again until the check finds what it looks for, and returns that.
///
/// There is no fixed wait anywhere: it returns within 25 ms of the fact. A single check that hangs is dropped when time
/// is up.
///
/// # Panics
///
/// When the `limit` has passed, with `what`, what the last check saw, and the place of the call: it is an assertion. At
/// once where what the check finds is a `bool`, an `Option` or a `Result`, which would be found whatever it says.
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
    if is_doubtful::<C::Found>() {
        let check = type_name::<C>();
        fail(&format!(
            "{what} would be found at once: a check answers {check}, one test within another ({caller})"
        ));
    }
    async move {
        let outcome = until(limit, check).await;
        outcome.unwrap_or_else(|last| {
            fail(&format!("{what} did not happen within {limit:?}: {last} ({caller})"))
        })
    }
}

/// There is no other way to ask this of any type: for what is no bool, no Option and no Result there is no trait.
fn is_doubtful<T>() -> bool {
    let name = type_name::<T>();
    name == type_name::<bool>() || DOUBTFUL.iter().any(|doubtful| name.starts_with(doubtful))
}

#[expect(clippy::panic, reason = "an assertion, for tests: it is there to fail them")]
fn fail(message: &str) -> ! {
    panic!("{message}")
}

/// The same without the panic: what the last check saw is the error.
pub(crate) async fn until<C: Check, F: Future<Output = C>>(
    limit: Duration,
    mut check: impl FnMut() -> F,
) -> Result<C::Found, String> {
    let deadline = Instant::now() + limit;
    let mut last = String::from("nothing was seen");
    loop {
        match timeout_at(deadline, check()).await.map(Check::found) {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(seen)) => last = seen,
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
    async fn what_is_found_at_last_is_returned() {
        let checks = Cell::new(0);
        let found = eventually("a fifth check", SECOND, async || {
            checks.set(checks.get() + 1);
            (checks.get() == 5).then_some(checks.get())
        });
        assert_eq!(found.await, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_last_is_told_when_time_is_up() {
        let checks = Cell::new(0);
        let seen = until(SECOND, async || {
            checks.set(checks.get() + 1);
            Err::<(), _>(format!("{} checks", checks.get()))
        });
        assert_eq!(seen.await, Err("40 checks".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_hangs_is_dropped_when_time_is_up() {
        assert_eq!(
            until(SECOND, pending::<bool>).await,
            Err("nothing was seen, and the next check hung".into())
        );
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "a miracle did not happen within 1s: it was false (testing/src/eventually.rs:")]
    async fn an_assertion_that_fails_names_what_it_waited_for_and_its_place() {
        eventually("a miracle", SECOND, async || false).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(
        expected = "a pod would be found at once: a check answers core::result::Result<core::option::Option<i32>, "
    )]
    async fn an_answer_that_there_is_none_is_not_taken_for_what_is_looked_for() {
        eventually("a pod", SECOND, async || Ok::<Option<i32>, String>(None)).await;
    }

    #[test]
    fn one_test_within_another_is_refused_and_nothing_else_is() {
        assert!(is_doubtful::<bool>() && is_doubtful::<Option<u8>>() && is_doubtful::<Result<u8, String>>());
        assert!(!is_doubtful::<()>() && !is_doubtful::<Vec<bool>>() && !is_doubtful::<Box<Option<u8>>>());
    }
}
