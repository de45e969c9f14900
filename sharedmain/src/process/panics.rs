//! Panics in the log: one line each, instead of a backtrace on standard error.
use std::{
    backtrace::{Backtrace, BacktraceStatus},
    cell::Cell,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook},
};

use reknit_injection::internal::panic_message;

thread_local! {
    /// Set while [`catch_panic`] runs on this thread. Its caller reports the panic, so the panic hook does not log it.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Logs panics as events with the fields of the current span, and with a stack trace if `RUST_BACKTRACE` is set.
pub(super) fn log_panics() {
    set_hook(Box::new(|info| {
        if !IS_CAUGHT.get() {
            log(info);
        }
    }));
}

fn log(info: &PanicHookInfo<'_>) {
    let message = panic_message(info.payload());
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        tracing::error!(location, stacktrace = %trace, "panicked: {message}");
    } else {
        tracing::error!(location, "panicked: {message}");
    }
}

/// Runs the closure. A panic becomes an error with its message, and is not logged.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let before = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    IS_CAUGHT.set(before);
    result.map_err(|payload| panic_message(&*payload).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_panic_is_an_error_with_its_message() {
        assert_eq!(catch_panic(|| 1), Ok(1));
        assert_eq!(catch_panic(|| panic!("a literal")), Err::<(), _>("a literal".into()));
        let key = String::from("shop/web");
        assert_eq!(catch_panic(|| panic!("formatted: {key}")), Err::<(), _>("formatted: shop/web".into()));
    }
}
