//! Marks calls of handlers with objects that are not new: those of a first list, and those that a new handler is called
//! with.

use std::cell::Cell;

thread_local! {
    static INITIAL: Cell<bool> = const { Cell::new(false) };
}

/// Returns true within a handler that is called with an object of a first list, or because the handler is new.
pub fn is_initial() -> bool {
    INITIAL.get()
}

/// Calls handlers with objects that are not new, if `initial`.
pub(super) fn notifying(initial: bool, notify: impl FnOnce()) {
    let before = INITIAL.replace(initial || is_initial());
    notify(); // handlers do not unwind
    INITIAL.set(before);
}
