//! What becomes of a panic: one line in the log, rather than a page on standard error.
use std::{
    any::Any,
    backtrace::{Backtrace, BacktraceStatus},
    cell::Cell,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook},
};

thread_local! {
    /// Whoever catches a panic here tells of it.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// From now on a panic is an event of the log, with the fields of the span it happened in. With `RUST_BACKTRACE`
/// it has a stack trace as a field.
pub(crate) fn log_them() {
    set_hook(Box::new(|info| {
        if !TOLD.get() {
            log(info);
        }
    }));
}

fn log(info: &PanicHookInfo<'_>) {
    let message = text(info.payload());
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        tracing::error!(location, stacktrace = %trace, "panicked: {message}");
    } else {
        tracing::error!(location, "panicked: {message}");
    }
}

/// Runs it; a panic becomes an error with its text, and is not logged.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let before = TOLD.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    TOLD.set(before);
    result.map_err(|payload| text(&*payload).to_owned())
}

/// What was given to `panic!`, where it is a text.
pub(crate) fn text(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&'static str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("it says no more")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_panic_is_an_error_with_its_text() {
        assert_eq!(caught(|| 1), Ok(1));
        assert_eq!(caught(|| panic!("around")), Err::<(), _>("around".into()));
        let circle = String::from("a → b → a");
        assert_eq!(caught(|| panic!("circle: {circle}")), Err::<(), _>("circle: a → b → a".into()));
    }
}
