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

/// The old and the new state of an object, within a handler of its update; elsewhere empty.
#[derive(Clone, Debug, Default)]
pub struct Update(Option<[Object; 2]>);

impl Update {
    /// The update that handlers of this thread are called with now.
    pub fn current() -> Self {
        Self(UPDATE.with_borrow(Clone::clone))
    }

    /// Returns true if handlers of this thread are called with an update that a list has brought although the
    /// resourceVersion is the same: the API server reads the stored state in another way than before.
    pub fn is_reread() -> bool {
        UPDATE.with_borrow(|update| update.as_ref().is_some_and(|[old, new]| old.is_same_state(&new.state())))
    }

    /// The parts in which the object changed. This reads both states, which costs more than most handlers.
    pub fn parts(&self) -> Parts {
        self.0.as_ref().map(|[old, new]| Parts::between(old, new)).unwrap_or_default()
    }
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
