//! Panics in the log: one line each, instead of a backtrace on standard error.
use std::{
    any::Any,
    backtrace::{Backtrace, BacktraceStatus},
    cell::Cell,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook},
};

thread_local! {
    /// Set while the caller of this thread catches panics and reports them itself.
    static REPORTED: Cell<bool> = const { Cell::new(false) };
}

/// Logs panics as events with the fields of the current span, and with a stack trace if `RUST_BACKTRACE` is set.
pub(super) fn log_panics() {
    set_hook(Box::new(|info| {
        if !REPORTED.get() {
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

/// Runs the closure. A panic becomes an error with its text, and is not logged.
pub(super) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let before = REPORTED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    REPORTED.set(before);
    result.map_err(|payload| text(&*payload).to_owned())
}

/// Returns the message of a panic, if it is a string.
pub(super) fn text(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&'static str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
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
