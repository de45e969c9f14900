//! The change that the handlers of the current thread are called with.

use std::cell::{Cell, RefCell};

use crate::object::{Object, Parts};

thread_local! {
    static INITIAL: Cell<bool> = const { Cell::new(false) };
    static UPDATE: RefCell<Option<[Object; 2]>> = const { RefCell::new(None) };
}

/// Returns true within a handler that is called with an object of a first list, or because the handler is new.
pub fn is_initial() -> bool {
    INITIAL.get()
}

/// Returns the parts in which the object changed, within a handler of its update.
pub fn changed_parts() -> Parts {
    UPDATE
        .with_borrow(|update| update.as_ref().map(|[old, new]| Parts::between(old, new)).unwrap_or_default())
}

/// Calls handlers with objects that are not new, if `initial`.
pub(super) fn notifying(initial: bool, notify: impl FnOnce()) {
    let before = INITIAL.replace(initial || is_initial());
    notify(); // handlers do not unwind
    INITIAL.set(before);
}

/// Calls handlers with the change from the old state, if there was one, to the new one, if there is one.
pub(super) fn notifying_of([old, new]: [Option<&Object>; 2], notify: impl FnOnce()) {
    let update = old.zip(new).map(|(old, new)| [old.clone(), new.clone()]);
    let before = UPDATE.replace(update);
    notify();
    UPDATE.set(before);
}
